use super::*;
use crate::observer::Leases;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use umf_core::deferred::OnFree;
use umf_core::{AddressSpace, Completion, Layout, MemoryKind, Progress, Provider, ProviderKind, Visibility};

/// A provider of addresses without memory. Each test uses its own address space.
struct Numbers {
    space: AddressSpace,
    next: AtomicU64,
}

impl Numbers {
    fn new(space: u8) -> Arc<Self> {
        Arc::new(Self { space: AddressSpace::new(space).unwrap(), next: AtomicU64::new(0x10_0000) })
    }

    fn at(&self, value: u64) -> Address {
        Address::in_space(self.space, value).unwrap()
    }
}

// SAFETY: no process maps the address space of this "memory"; each address is handed out once.
unsafe impl Provider for Numbers {
    fn kind(&self) -> ProviderKind {
        ProviderKind::new("numbers").unwrap()
    }
    fn name(&self) -> &str {
        "numbers"
    }
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }
    fn visibility(&self) -> Visibility {
        Visibility::Private
    }
    fn page_size(&self) -> usize {
        256
    }
    fn allocate(&self, layout: Layout) -> Result<Region> {
        let size = layout.pad_to(256)?.size();
        let align = layout.align().max(256) as u64;
        let step = size as u64 + align;
        let base = self.next.fetch_add(step, Ordering::Relaxed).next_multiple_of(align);
        Ok(Region::new(self.at(base), size))
    }
    unsafe fn free(&self, _region: Region) -> Result<()> {
        Ok(())
    }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::new(size, align).unwrap()
}

#[test]
fn find_returns_the_region_of_each_address_and_none_outside() {
    let provider = Numbers::new(100);
    let upstream = Upstream::new(provider.clone()).unwrap();
    let mut regions = Vec::new();
    for size in [256, 512, 4096, 65536, 200_000, 256, 256, 1 << 20, 768] {
        regions.push(upstream.allocate(layout(size, 256)).unwrap().0);
    }
    for region in &regions {
        for offset in [0, 1, region.size() / 2, region.size() - 1] {
            let address = region.base().checked_add(offset as u64).unwrap();
            assert_eq!(find(address).unwrap().region, *region);
            assert_eq!(find(address).unwrap().owner, upstream.id());
        }
        // Between two regions the provider leaves a gap.
        assert!(find(region.base().checked_add(region.size() as u64).unwrap()).is_none());
    }
    for region in &regions {
        // SAFETY: no thread uses the region.
        unsafe { upstream.free(*region) }.unwrap();
        assert!(find(region.base()).is_none());
        // SAFETY: not live any more: an error.
        assert!(matches!(unsafe { upstream.free(*region) }, Err(Error::ForeignAddress { .. })));
    }
}

#[test]
fn regions_that_share_a_granule_are_found() {
    let provider = Numbers::new(101);
    let upstream = Upstream::new(provider.clone()).unwrap();
    let regions: Vec<_> = (0..100).map(|_| upstream.allocate(layout(256, 256)).unwrap().0).collect();
    for (i, region) in regions.iter().enumerate() {
        assert_eq!(find(region.base()).unwrap().region, *region, "{i}");
    }
    for region in regions.iter().step_by(2) {
        // SAFETY: no thread uses the region.
        unsafe { upstream.free(*region) }.unwrap();
    }
    for (i, region) in regions.iter().enumerate() {
        assert_eq!(find(region.base()).map(|found| found.region), (i % 2 == 1).then_some(*region));
    }
}

#[test]
fn find_returns_the_innermost_region_until_it_is_removed() {
    let provider = Numbers::new(102);
    let outer_user = Upstream::new(provider.clone()).unwrap();
    let (outer, _) = outer_user.allocate(layout(1 << 20, 1 << 20)).unwrap();
    let inner_user = Upstream::new(provider.clone()).unwrap();
    // A region in the middle, one of the same base, and one that covers all of it.
    for (offset, size) in [(0x4_0000, 0x1_0000), (0, 256), (0, 1 << 20)] {
        let inner = Region::new(outer.base().checked_add(offset).unwrap(), size);
        let number = insert(inner, inner_user.id()).unwrap();
        assert_eq!(find(inner.base()).unwrap().region, inner);
        // SAFETY: an error, because another region lies in it; nothing is freed.
        assert!(offset != 0 || unsafe { outer_user.free(outer) }.is_err());
        remove(number, inner);
        assert_eq!(find(inner.base()).unwrap().region, outer);
    }
    // SAFETY: no thread uses the region.
    unsafe { outer_user.free(outer) }.unwrap();
}

#[test]
fn spans_belong_to_their_region() {
    let provider = Numbers::new(103);
    let upstream = Upstream::new(provider.clone()).unwrap();
    let (region, number) = upstream.allocate(layout(4 * GRANULE, GRANULE)).unwrap();
    let second = region.base().checked_add(GRANULE as u64).unwrap();
    set_span(number, second, 2 * GRANULE, 77).unwrap();
    assert_eq!(span(region.base()), Some((number, 0)));
    assert_eq!(span(second), Some((number, 77)));
    assert_eq!(find(second.checked_add(GRANULE as u64 + 5).unwrap()).unwrap().span, 77);
    let nested = Region::new(second, 512);
    let nested_number = insert(nested, upstream.id()).unwrap();
    assert_eq!(find(second).unwrap().span, 0);
    assert_eq!(find(second.checked_add(512).unwrap()).unwrap().span, 77);
    set_span(number, second, GRANULE, 78).unwrap();
    set_span(nested_number, second, 512, 5).unwrap();
    assert_eq!(find(second).unwrap().span, 5);
    assert_eq!(find(second.checked_add(512).unwrap()).unwrap().span, 78);
    remove(nested_number, nested);
    assert_eq!(span(second), Some((number, 78)));
    assert!(set_span(nested_number, second, GRANULE, 1).is_err());
}

#[test]
fn find_is_consistent_while_regions_come_and_go() {
    let provider = Numbers::new(105);
    let upstream = Upstream::new(provider.clone()).unwrap();
    let fixed = upstream.allocate(layout(256, 256)).unwrap().0;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(find(fixed.base()).unwrap().region, fixed);
                for value in (0x10_0000..0x12_0000).step_by(4096) {
                    let address = provider.at(value);
                    if let Some(found) = find(address) {
                        assert!(found.region.contains(address));
                    }
                }
            }
        });
        for round in 0..3_000 {
            let batch: Vec<_> = (0..20)
                .map(|i| upstream.allocate(layout(256 * (1 + (round + i) % 9), 256)).unwrap().0)
                .collect();
            provider.next.store(0x10_1000, Ordering::Relaxed);
            for region in batch {
                // SAFETY: no thread uses the region.
                unsafe { upstream.free(region) }.unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn owners_are_guarded_and_reused() {
    let provider = Numbers::new(106);
    let upstream = Upstream::new(provider.clone()).unwrap();
    let id = upstream.id();
    let guard = id.guard().unwrap();
    assert_eq!(guard.provider().unwrap().name(), "numbers");
    assert!(guard.pool().is_none());
    drop(guard);
    drop(upstream);
    assert!(id.guard().is_none());
    let before = Arc::strong_count(&provider);
    for _ in 0..50_000 {
        drop(Upstream::new(provider.clone()).unwrap());
    }
    assert_eq!(Arc::strong_count(&provider), before);
}

struct Unfinished(AtomicU64);

impl Completion for Unfinished {
    fn progress(&self) -> Progress {
        match self.0.load(Ordering::Relaxed) {
            0 => Progress::Ready,
            1 => Progress::Pending,
            _ => Progress::Lost,
        }
    }
}

#[test]
fn region_with_pending_blocks_counts_as_pending_and_lost() {
    let upstream = Upstream::new(Numbers::new(117)).unwrap();
    let region = upstream.allocate(layout(1024, 256)).unwrap().0;
    let blocks = [1, 2].map(|progress| Arc::new(Unfinished(AtomicU64::new(progress))));
    for (offset, block) in [0, 512].into_iter().zip(&blocks) {
        let address = region.base().checked_add(offset).unwrap();
        assert!(upstream.defer_until(address, 512, block.clone(), None));
    }
    let sums = || {
        let held = upstream.deferred();
        (held.blocks, held.regions, held.bytes, held.pending_bytes, held.lost_bytes)
    };
    assert_eq!(sums(), (2, 0, 1024, 1024, 0));
    // SAFETY: no thread uses the region.
    assert_eq!(unsafe { upstream.free(region) }, Ok(crate::deferred::FreeOutcome::Deferred));
    assert_eq!(sums(), (0, 1, 1024, 1024, 0));
    upstream.poll();
    assert_eq!(sums(), (0, 1, 1024, 1024, 1024));
    blocks[1].0.store(0, Ordering::Relaxed);
    upstream.poll();
    assert_eq!(sums(), (0, 1, 1024, 1024, 0));
    blocks[0].0.store(0, Ordering::Relaxed);
    upstream.poll();
    assert_eq!(sums(), (0, 0, 0, 0, 0));
}

struct Lease(AtomicBool);

impl Leases for Lease {
    fn is_leased(&self, _base: Address, _size: usize) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn held_limit_counts_leased_bytes_but_not_pending_ones() {
    let upstream = Upstream::new(Numbers::new(118)).unwrap();
    upstream.set_on_free(OnFree::Hold, 512);
    let region = upstream.allocate(layout(1024, 256)).unwrap().0;
    let completion = Arc::new(Unfinished(AtomicU64::new(1)));
    assert!(upstream.defer_until(region.base(), 512, completion.clone(), None));
    assert_eq!(upstream.admit(), Ok(()));
    let lease = Arc::new(Lease(AtomicBool::new(true)));
    assert!(upstream.defer(region.base().checked_add(512).unwrap(), 512, lease.clone()));
    assert_eq!(upstream.admit(), Err(Error::HeldLimit { held: 512, limit: 512 }));
    lease.0.store(false, Ordering::Relaxed);
    completion.0.store(0, Ordering::Relaxed);
    // SAFETY: no thread uses the region.
    assert_eq!(unsafe { upstream.free(region) }, Ok(crate::deferred::FreeOutcome::Freed));
    assert_eq!(upstream.admit(), Ok(()));
}

/// The first address of another space follows the last one of the process.
#[test]
fn addresses_outside_of_the_process_space_have_no_owner() {
    for bits in [1 << Address::BITS, u64::MAX] {
        assert_eq!(owner(Address::from_bits(bits)), None);
        assert_eq!(span_below(Address::from_bits(bits), u32::MAX), None);
    }
}

/// In the process's address space, at addresses that are never mapped; with and without an overflow
/// list.
#[test]
fn owner_is_that_of_the_region_around_the_address() {
    let provider = Numbers::new(107);
    let (one, other) =
        (Upstream::new(provider.clone()).unwrap().id(), Upstream::new(provider.clone()).unwrap().id());
    let at = |value: usize| Address::new(0x70_0000_0000_0000 + value).unwrap();
    let region = Region::new(at(0x1_8000), 0x2_0000);
    let number = insert(region, one).unwrap();
    for (value, expected) in [
        (0x1_0000, None),
        (0x1_7fff, None),
        (0x1_8000, Some(one)),
        (0x2_0000, Some(one)),
        (0x3_7fff, Some(one)),
        (0x3_8000, None),
        (0x100_0000, None),
    ] {
        assert_eq!(owner(at(value)), expected, "{value:#x}");
        assert_eq!(find(at(value)).map(|found| found.owner), expected, "{value:#x}");
    }
    let inner = Region::new(at(0x2_4000), 0x1000);
    let second = insert(inner, other).unwrap();
    assert_eq!(
        [0x2_3fff, 0x2_4000, 0x2_5000].map(|value| owner(at(value))),
        [Some(one), Some(other), Some(one)]
    );
    remove(second, inner);
    remove(number, region);
    assert_eq!(owner(at(0x2_4000)), None);
}

#[test]
fn owner_is_consistent_while_a_record_is_reused() {
    let provider = Numbers::new(108);
    let (low, high) = (Upstream::new(provider.clone()).unwrap(), Upstream::new(provider.clone()).unwrap());
    let at = |value: usize| Address::new(0x71_0000_0000_0000 + value).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (value, upstream) in [(0x100, &low), (0x9_0000, &high)] {
                    assert!(owner(at(value)).is_none_or(|found| found == upstream.id()));
                }
                // Between the two there is never one.
                assert_eq!(owner(at(0x8_0000)), None);
            }
        });
        // One record is reused again and again, each time for the other owner.
        for _ in 0..20_000 {
            for (value, upstream) in [(0, &low), (0x9_0000, &high)] {
                let region = Region::new(at(value), 0x1_0000);
                remove(insert(region, upstream.id()).unwrap(), region);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A provider whose next region has the address that the test sets.
struct Placed {
    numbers: Arc<Numbers>,
    next: AtomicU64,
}

// SAFETY: as `Numbers`; the test does not use the memory.
unsafe impl Provider for Placed {
    fn kind(&self) -> ProviderKind {
        ProviderKind::new("placed").unwrap()
    }
    fn name(&self) -> &str {
        "placed"
    }
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }
    fn visibility(&self) -> Visibility {
        Visibility::Private
    }
    fn page_size(&self) -> usize {
        256
    }
    fn allocate(&self, layout: Layout) -> Result<Region> {
        Ok(Region::new(self.numbers.at(self.next.load(Ordering::Relaxed)), layout.size()))
    }
    unsafe fn free(&self, _region: Region) -> Result<()> {
        Ok(())
    }
}

#[test]
fn region_of_each_nested_provider_is_found() {
    let outer_provider = Numbers::new(111);
    let outer = Upstream::new(outer_provider.clone()).unwrap();
    let whole = outer.allocate(layout(4096, 256)).unwrap().0;
    let placed = Arc::new(Placed { numbers: outer_provider, next: AtomicU64::new(whole.base().value()) });
    let inner = Upstream::new(Arc::clone(&placed)).unwrap();
    // A provider that forwards has regions of the same base and size.
    let same = inner.allocate(layout(4096, 256)).unwrap().0;
    let of = |id| move |found: &TrackedRegion| found.owner == id;
    assert_eq!(find(whole.base()).unwrap().region, same);
    assert_eq!(find_where(whole.base(), of(inner.id())).unwrap().region, same);
    assert_eq!(find_where(whole.base(), of(outer.id())).unwrap().region, whole);
    assert!(find_where(whole.base(), |_| false).is_none());
    // SAFETY: no thread uses the regions.
    unsafe {
        inner.free(same).unwrap();
        outer.free(whole).unwrap();
    }
}

#[test]
fn region_that_lies_partly_in_another_is_refused() {
    let provider = Numbers::new(112);
    let outer = Upstream::new(provider.clone()).unwrap();
    let whole = outer.allocate(layout(4096, 256)).unwrap().0;
    let base = whole.base().value();
    let placed = Arc::new(Placed { numbers: provider, next: AtomicU64::new(base) });
    let inner = Upstream::new(Arc::clone(&placed)).unwrap();
    for (start, size, is_inside) in [
        (base, 4096, true),
        (base + 256, 4096 - 256, true),
        (base, 4096 + 256, false),
        (base + 2048, 4096, false),
        (base - 256, 512, false),
        (base - 256, 256, true),
        (base + 4096, 256, true),
    ] {
        placed.next.store(start, Ordering::Relaxed);
        match inner.allocate(layout(size, 256)) {
            // SAFETY: no thread uses the region.
            Ok((region, _)) if is_inside => drop(unsafe { inner.free(region) }.unwrap()),
            Err(Error::Untrusted { .. }) if !is_inside => {}
            other => panic!("{size} bytes at {:#x}: {other:?}", start.wrapping_sub(base)),
        }
    }
    // SAFETY: no thread uses the region.
    unsafe { outer.free(whole) }.unwrap();
}
