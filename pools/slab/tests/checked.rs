//! The checked pool (double frees, leaks, quarantine), over a slab pool, and some tests over a
//! proxy pool.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use umf_core::history::{Event, EventKind};
use umf_core::leaks::LeakTime;
use umf_core::map::PieceState;
use umf_core::out_of_memory::{OutOfMemoryAction, OutOfMemoryEvent};
use umf_core::{Address, DeferredFree, Error, Inspect, Layout, Pool, ProviderRef};
use umf_pool_proxy::{ProxyPool, ProxySettings};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_runtime::checked::{CheckSettings, Checked, Leaks, Poison};
use umf_runtime::tracker;
use umf_testkit::pool::{AddressOnlyProvider, MmapProvider};
use umf_testkit::{LeaseHolder, race};

fn slab(provider: impl Into<ProviderRef>, settings: CheckSettings) -> Arc<Checked> {
    Checked::new(SlabPool::new(provider, SlabSettings::new().name("checked")).unwrap(), settings).unwrap()
}

fn proxy(provider: impl Into<ProviderRef>, settings: CheckSettings) -> Arc<Checked> {
    Checked::new(ProxyPool::new(provider).unwrap(), settings).unwrap()
}

type Make = fn(ProviderRef, CheckSettings) -> Arc<Checked>;
const KINDS: [Make; 2] = [slab, proxy];

fn allocate(pool: &Checked, size: usize) -> Address {
    pool.allocate(Layout::new(size, 8).unwrap()).unwrap()
}

fn free(pool: &Checked, address: Address) -> umf_core::Result<()> {
    // SAFETY: the block is the caller's and not in use, or an error is expected.
    unsafe { pool.free(address) }
}

fn byte_at(address: Address, offset: usize) -> *mut u8 {
    address.as_ptr().unwrap().wrapping_add(offset)
}

fn kinds(pool: &Checked) -> Vec<EventKind> {
    pool.history().unwrap().events.iter().map(|event| event.kind).collect()
}

#[test]
fn history_names_operations_and_threads() {
    let pool = slab(MmapProvider::private(), CheckSettings::new().history(100));
    let small = allocate(&pool, 100);
    let other = std::thread::scope(|scope| {
        let freeing = scope.spawn(|| {
            free(&pool, small).unwrap();
            umf_os::process::thread_id()
        });
        freeing.join().unwrap()
    });
    let Err(Error::FreedTwice { address, by }) = free(&pool, small) else { panic!("freed twice") };
    assert_eq!((address, by.thread), (small, other));
    assert!(by.ago < Duration::from_secs(60));
    let huge = allocate(&pool, 20 << 20);
    free(&pool, huge).unwrap();
    assert!(pool.allocate(Layout::new(1 << 50, 8).unwrap()).is_err());
    pool.trim(0).unwrap();
    use EventKind::{Allocate, AllocateRefused, Free, FreeRefused, Trim};
    let history = pool.history().unwrap();
    assert_eq!((history.pool.as_str(), history.forgotten), ("checked", 0));
    let expected = [Allocate, Free, FreeRefused, Allocate, Free, AllocateRefused, Trim];
    assert_eq!(kinds(&pool)[..], expected);
    let [allocated, freed, refused, ..] = history.events[..] else { panic!("seven") };
    assert_eq!((allocated.address, allocated.size, allocated.block_size), (small, 100, 104));
    assert_eq!((allocated.thread, allocated.reason), (umf_os::process::thread_id(), ""));
    assert_eq!((freed.address, freed.thread, freed.block_size), (small, other, 104));
    assert_eq!((refused.address, refused.reason), (small, "freed twice"));
    assert!(history.events.is_sorted_by_key(|event| event.at));
    assert!(history.to_string().contains("100 bytes in 104"), "{history}");
}

/// Without checks, both of two concurrent frees of a small block may succeed.
#[test]
fn one_of_two_concurrent_frees_is_an_error() {
    const ROUNDS: usize = 500;
    let pool = slab(AddressOnlyProvider::new(4096), CheckSettings::new().history(100));
    for round in 0..ROUNDS {
        let blocks: Vec<Address> = (0..100).map(|_| allocate(&pool, 24 << (round % 8))).collect();
        let won = AtomicUsize::new(0);
        race(&blocks, |&address| {
            won.fetch_add(usize::from(free(&pool, address).is_ok()), Ordering::Relaxed);
        });
        assert_eq!(won.into_inner(), blocks.len());
    }
    assert_eq!(pool.statistics().live_blocks, 0);
}

/// Another thread may allocate a block before the thread that frees it returns.
#[test]
fn valid_concurrent_frees_succeed() {
    let settings = SlabSettings::new().max_cached(256 << 10);
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), settings).unwrap();
    let pool = Checked::new(pool, CheckSettings::new().history(100)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..60_000 {
                    free(&pool, allocate(&pool, 100_000)).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.statistics().live_blocks, 0);
}

#[test]
fn history_forgets_old_operations() {
    let pool = slab(MmapProvider::private(), CheckSettings::new().history(10));
    let first = allocate(&pool, 8);
    free(&pool, first).unwrap();
    let mut last = first;
    for _ in 0..50 {
        last = allocate(&pool, 5000);
        free(&pool, last).unwrap();
    }
    let history = pool.history().unwrap();
    assert_eq!(history.events.len(), 10);
    assert!(history.forgotten >= 92, "{}", history.forgotten);
    assert_eq!(free(&pool, first), Err(Error::NotAllocated { address: first }));
    assert!(matches!(free(&pool, last), Err(Error::FreedTwice { .. })));
    let none = slab(MmapProvider::private(), CheckSettings::new());
    assert!(none.history().is_none());
    let too_long = CheckSettings::new().history(CheckSettings::LONGEST_HISTORY + 1);
    assert!(matches!(
        Checked::new(ProxyPool::new(MmapProvider::private()).unwrap(), too_long),
        Err(Error::InvalidArgument { what: "history", .. })
    ));
}

#[test]
fn history_is_read_while_threads_write_it() {
    let pool = slab(MmapProvider::private(), CheckSettings::new().history(64));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        for size in [24_usize, 1000, 100_000] {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let address = allocate(pool, size);
                    free(pool, address).unwrap();
                }
            });
        }
        for _ in 0..300 {
            let history = pool.history().unwrap();
            for event in &history.events {
                match event.kind {
                    EventKind::Allocate => {
                        assert!(
                            [(24, 24), (1000, 1024), (100_000, 106_496)]
                                .contains(&(event.size, event.block_size)),
                            "{event}"
                        );
                    }
                    EventKind::Free => assert!([24, 1024, 106_496].contains(&event.block_size), "{event}"),
                    _ => {}
                }
            }
            assert!(history.events.is_sorted_by_key(|event| event.at));
        }
    });
}

/// Recorded leak reports: time, blocks, bytes, and blocks and bytes of each site.
type Reports = Arc<Mutex<Vec<(LeakTime, u64, u64, Vec<(u64, u64)>)>>>;

fn recording(reports: &Reports, settings: CheckSettings) -> CheckSettings {
    let reports = Arc::clone(reports);
    settings.on_leaks(move |report| {
        let sites = report.sites.iter().map(|site| (site.blocks, site.bytes)).collect();
        reports.lock().unwrap().push((report.time, report.blocks, report.bytes, sites));
    })
}

#[inline(never)]
fn allocate_at_one_site(pool: &Checked) -> Address {
    std::hint::black_box(allocate(pool, 1000))
}

#[inline(never)]
fn allocate_at_another_site(pool: &Checked) -> Address {
    std::hint::black_box(allocate(pool, 70_000))
}

#[test]
fn leaks_are_reported_with_sites_when_the_pool_is_dropped() {
    if umf_os::stack::capture().frames().next().is_none() {
        println!("umf-skip: this C library has no call stacks");
        return;
    }
    let reports = Reports::default();
    let settings = CheckSettings::new().leaks(Leaks::Sites);
    let pool = slab(MmapProvider::private(), recording(&reports, settings));
    let blocks: Vec<_> = (0..10)
        .map(|n| if n < 7 { allocate_at_one_site(&pool) } else { allocate_at_another_site(&pool) })
        .collect();
    // A block that any thread has freed is not a leak.
    free(&pool, blocks[0]).unwrap();
    std::thread::scope(|scope| scope.spawn(|| free(&pool, blocks[9]).unwrap()).join().unwrap());
    let mut sites = 0;
    assert!(pool.leaks(&mut |report| sites = report.sites.len()));
    assert_eq!(sites, 2);
    drop(pool);
    let reports = reports.lock().unwrap();
    let [(LeakTime::PoolEnd, 8, bytes, sites)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((*bytes, &sites[..]), (6 * 1024 + 2 * 73_728, &[(2, 140_000), (6, 6000)][..]));
}

#[test]
fn leaks_are_reported_only_if_there_are_some() {
    for (make, small) in [(slab as Make, 104), (proxy, 4096)] {
        let reports = Reports::default();
        let counting = || recording(&reports, CheckSettings::new().leaks(Leaks::Count));
        let clean = make(MmapProvider::private().into(), counting());
        free(&clean, allocate(&clean, 10)).unwrap();
        drop(clean);
        assert!(reports.lock().unwrap().is_empty());
        let pool = make(MmapProvider::private().into(), counting());
        allocate(&pool, 100);
        allocate(&pool, 20 << 20);
        assert!(pool.leaks(&mut |report| {
            let sizes: Vec<_> = report.sizes.iter().map(|size| (size.block_size, size.blocks)).collect();
            assert_eq!(sizes, [(small, 1), (20 << 20, 1)]);
            assert_eq!((report.sampled, report.time), (0, LeakTime::Requested));
        }));
        drop(pool);
        let quiet = make(MmapProvider::private().into(), recording(&reports, CheckSettings::new()));
        allocate(&quiet, 100);
        drop(quiet);
        assert_eq!(reports.lock().unwrap()[..], [(LeakTime::PoolEnd, 2, small + (20 << 20), Vec::new())]);
    }
}

#[test]
fn sampling_records_one_of_many_allocations() {
    if umf_os::stack::capture().frames().next().is_none() {
        println!("umf-skip: this C library has no call stacks");
        return;
    }
    let settings = CheckSettings::new().leaks(Leaks::Sites).leak_sample(10);
    let pool = slab(MmapProvider::private(), settings);
    let blocks: Vec<_> = (0..1000).map(|_| allocate_at_one_site(&pool)).collect();
    let recorded = || {
        let mut sum = 0;
        pool.leaks(&mut |report| {
            assert_eq!(report.sampled, 10);
            sum = report.sites.iter().map(|site| site.blocks).sum();
        });
        sum
    };
    assert_eq!(recorded(), 100);
    blocks.into_iter().for_each(|block| free(&pool, block).unwrap());
    assert_eq!(recorded(), 0);
}

/// Recorded faults of a pool.
type Faults = Arc<Mutex<Vec<Error>>>;

fn record(faults: &Faults) -> impl Fn(&Error) + Send + Sync + 'static {
    let faults = Arc::clone(faults);
    move |fault| faults.lock().unwrap().push(*fault)
}

fn poisoned(faults: &Faults, make: Make, settings: CheckSettings) -> Arc<Checked> {
    let settings = settings.on_fault(record(faults));
    make(MmapProvider::private().into(), settings)
}

#[test]
fn write_after_free_is_reported_when_the_quarantine_ends() {
    for make in KINDS {
        for size in [8, 100, 5000, 100_000] {
            for ends in [0, 1, 2] {
                let faults = Faults::default();
                let pool = poisoned(&faults, make, CheckSettings::new().poison(Poison::All).history(100));
                let (block, other) = (allocate(&pool, size), allocate(&pool, size));
                // SAFETY: the test's own block.
                assert_eq!(unsafe { byte_at(block, size - 1).read() }, CheckSettings::NEW_BYTE);
                free(&pool, block).unwrap();
                free(&pool, other).unwrap();
                // SAFETY: a write after free, on purpose: the block is in the quarantine, so its
                // memory is mapped.
                unsafe {
                    assert_eq!(byte_at(block, 0).read(), CheckSettings::FREED_BYTE);
                    byte_at(block, size / 2).write(7);
                }
                assert!(faults.lock().unwrap().is_empty());
                match ends {
                    0 => {
                        pool.trim(0).unwrap();
                        assert!(kinds(&pool).contains(&EventKind::WrittenAfterFree));
                        assert_eq!(pool.statistics().reserved_bytes, 0);
                        // The block can be allocated again.
                        free(&pool, allocate(&pool, size)).unwrap();
                        drop(pool);
                    }
                    1 => {
                        // Newer blocks evict it from the quarantine.
                        for _ in 0..3 * (1 << 20) / pool.block_at(allocate(&pool, size)).unwrap().size {
                            free(&pool, allocate(&pool, size)).unwrap();
                        }
                    }
                    _ => drop(pool),
                }
                let faults = faults.lock().unwrap();
                let [Error::WrittenAfterFree { address, offset, by: _, size: whole }] = faults[..] else {
                    panic!("{size}, {ends}: {faults:?}")
                };
                assert_eq!((address, offset), (block, size / 2));
                assert!(whole >= size);
            }
        }
    }
}

#[test]
fn free_in_a_quarantine_is_a_double_free_and_exports_end_at_once() {
    for make in KINDS {
        let faults = Faults::default();
        let settings = CheckSettings::new().quarantine(64 << 10).history(10).poison(Poison::Freed);
        let pool = make(MmapProvider::shared().into(), settings.on_fault(record(&faults)));
        let (exported, leased, block) = (allocate(&pool, 100), allocate(&pool, 100), allocate(&pool, 100));
        let borrower = LeaseHolder::new();
        for shared in [exported, leased] {
            pool.mark_exported(shared).unwrap();
            borrower.open(shared, 100);
        }
        borrower.close(exported);
        for one in [exported, leased, block] {
            // SAFETY: the test's own block.
            unsafe { byte_at(one, 5).write(5) };
            // Through the tracker, as a caller that knows only the address.
            // SAFETY: the test's own block, which is not used any more.
            unsafe { tracker::free(one) }.unwrap();
            let Err(Error::FreedTwice { address, by }) = free(&pool, one) else { panic!("freed twice") };
            assert_eq!((address, by.thread), (one, umf_os::process::thread_id()));
            assert!(pool.block_at(one).is_err() && pool.mark_exported(one).is_err());
        }
        // A leased block is not overwritten, and is not in the quarantine.
        // SAFETY: the blocks are held, so their memory is mapped.
        let bytes = [exported, leased, block].map(|one| unsafe { byte_at(one, 5).read() });
        assert_eq!(bytes, [CheckSettings::FREED_BYTE, 5, CheckSettings::FREED_BYTE]);
        let statistics = pool.statistics();
        assert_eq!((statistics.live_blocks, statistics.frees), (0, 3));
        assert_eq!(statistics.quarantined_bytes, 2 * statistics.held_bytes);
        borrower.close_all();
        assert!(pool.controls().unwrap().drain(Duration::from_secs(20)).is_empty());
        assert_eq!((pool.statistics().held_bytes, pool.statistics().quarantined_bytes), (0, 0));
        assert!(faults.lock().unwrap().is_empty());
    }
}

#[test]
fn quarantine_delays_reuse_of_the_newest_blocks() {
    let faults = Faults::default();
    let pool = poisoned(&faults, slab, CheckSettings::new().quarantine(10 * 1024).poison(Poison::Freed));
    let blocks: Vec<_> = (0..20).map(|_| allocate(&pool, 1000)).collect();
    blocks.iter().for_each(|&block| free(&pool, block).unwrap());
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.frees, statistics.held_bytes), (0, 20, 0));
    assert!((10 * 1024..=20 * 1024).contains(&statistics.quarantined_bytes), "{statistics:?}");
    let map = pool.map().unwrap();
    assert_eq!(map.totals().quarantined, statistics.quarantined_bytes);
    let pieces = || map.regions.iter().flat_map(|region| &region.pieces);
    assert!(pieces().any(|piece| piece.state == PieceState::Quarantined));
    // None of the last ten blocks is reused yet, while older ones are.
    let again: Vec<_> = (0..200).map(|_| allocate(&pool, 1000)).collect();
    assert!(blocks[..10].iter().any(|block| again.contains(block)));
    assert!(blocks[10..].iter().all(|block| !again.contains(block)));
    // Too large a block is not quarantined, and a trim empties the quarantine.
    let (large, before) = (allocate(&pool, 20_000), pool.statistics().quarantined_bytes);
    free(&pool, large).unwrap();
    assert_eq!(pool.statistics().quarantined_bytes, before);
    again.iter().for_each(|&block| free(&pool, block).unwrap());
    pool.trim(0).unwrap();
    let statistics = pool.statistics();
    assert_eq!((statistics.quarantined_bytes, statistics.reserved_bytes), (0, 0));
    assert!(faults.lock().unwrap().is_empty());
}

#[test]
fn quarantine_does_not_make_an_allocation_fail() {
    let slab =
        SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().memory_limit(32 << 20)).unwrap();
    let limited = ProxySettings::default().memory_limit(32 << 20);
    let proxy = ProxyPool::with_settings(AddressOnlyProvider::new(4096), limited).unwrap();
    for pool in [slab as Arc<dyn Pool>, proxy] {
        let pool = Checked::new(pool, CheckSettings::new().quarantine(1 << 30)).unwrap();
        for _ in 0..100 {
            // Blocks that are regions too.
            for size in [1 << 20, 10 << 20] {
                let block = allocate(&pool, size);
                free(&pool, block).unwrap();
            }
        }
        assert!(pool.statistics().quarantined_bytes > 0);
        pool.trim(0).unwrap();
        assert_eq!(pool.statistics().reserved_bytes, 0);
    }
}

#[test]
fn memory_without_cpu_access_is_not_poisoned() {
    let pool = SlabPool::new(MmapProvider::untouchable(), SlabSettings::new()).unwrap();
    let result = Checked::new(pool, CheckSettings::new().poison(Poison::Freed));
    assert!(matches!(result, Err(Error::InvalidArgument { what: "poison", .. })), "{result:?}");
    // A quarantine alone does not access the memory.
    let settings = CheckSettings::new().quarantine(1 << 20).history(10).leaks(Leaks::Sites);
    let pool = slab(MmapProvider::untouchable(), settings);
    for size in [8, 1000, 100_000, 10 << 20] {
        let block = allocate(&pool, size);
        free(&pool, block).unwrap();
        assert!(matches!(free(&pool, block), Err(Error::FreedTwice { .. } | Error::ForeignAddress { .. })));
    }
}

#[test]
fn child_leaves_shared_memory_to_its_parent() {
    let faults = Faults::default();
    let hook = Arc::clone(&faults);
    let settings = CheckSettings::new().poison(Poison::Freed).quarantine(1 << 20).leaks(Leaks::Count);
    let settings = settings.on_fault(move |fault| hook.lock().unwrap().push(*fault));
    let reports = Reports::default();
    let pool = slab(MmapProvider::shared(), recording(&reports, settings));
    let (block, _left) = (allocate(&pool, 100), allocate(&pool, 100));
    free(&pool, block).unwrap();
    // SAFETY: a write after free, on purpose: the block is in the quarantine, so its memory is
    // mapped.
    unsafe { byte_at(block, 3).write(3) };
    // SAFETY: the child drops its copy of the pool, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(pool);
        let found = faults.lock().unwrap().len() + reports.lock().unwrap().len();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::try_from(found).unwrap()) };
    }
    let mut status = 1;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child reported faults of its parent");
    // SAFETY: as above.
    assert_eq!(unsafe { byte_at(block, 3).read() }, 3);
    drop(pool);
    assert_eq!((faults.lock().unwrap().len(), reports.lock().unwrap().len()), (1, 1));
}

#[test]
fn threads_are_checked_concurrently() {
    let faults = Faults::default();
    let settings = CheckSettings::new().history(50).leaks(Leaks::Sites).leak_sample(7);
    let pool = poisoned(&faults, slab, settings.poison(Poison::All).quarantine(100_000));
    let handed_over = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..4_usize {
            let (pool, handed_over) = (&pool, &handed_over);
            scope.spawn(move || {
                let mut size = 17 + seed;
                for round in 0..3000 {
                    size = size * 13 % 150_001 + 1;
                    let block = allocate(pool, size);
                    // SAFETY: the test's own block.
                    unsafe { block.as_ptr().unwrap().write_bytes(seed as u8, size) };
                    handed_over.lock().unwrap().push(block);
                    let other = handed_over.lock().unwrap().swap_remove(0);
                    free(pool, other).unwrap();
                    if round % 1000 == 999 {
                        pool.trim(0).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(faults.lock().unwrap()[..], []);
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.allocations), (0, 12_000));
    assert!(pool.leaks(&mut |report| assert_eq!((report.blocks, report.sites.len()), (0, 0))));
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
    let frees = |event: &&Event| event.kind == EventKind::Free;
    assert!(pool.history().unwrap().events.iter().filter(frees).count() > 50);
}

/// A panic in a leak callback does not leave the dropped pool registered: a later fork would visit
/// it.
#[test]
fn panic_in_a_report_is_caught() {
    for _ in 0..50 {
        let settings = CheckSettings::new().leaks(Leaks::Count).on_leaks(|_| panic!("in a report"));
        let pool = slab(MmapProvider::private(), settings);
        allocate(&pool, 100);
        drop(pool);
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}

/// The out-of-memory callback gets the checked pool, so its frees are checked.
#[test]
fn out_of_memory_callback_gets_the_checked_pool() {
    for make in KINDS {
        let provider = AddressOnlyProvider::new(4096);
        let pool = make(provider.clone().into(), CheckSettings::new().history(100));
        let first = allocate(&pool, 5000);
        let calls = Arc::new(Mutex::new(0));
        let count = Arc::clone(&calls);
        let callback = move |event: &OutOfMemoryEvent<'_>| {
            *count.lock().unwrap() += 1;
            match event.attempt {
                // SAFETY: the test's own block.
                1 => unsafe { event.pool.free(first) }.unwrap(),
                _ => return OutOfMemoryAction::GiveUp,
            }
            OutOfMemoryAction::Retry
        };
        pool.controls().unwrap().set_on_out_of_memory(Some(Arc::new(callback))).unwrap();
        provider.fail_after(Some(0));
        assert!(pool.allocate(Layout::new(1 << 30, 1).unwrap()).is_err());
        assert_eq!(*calls.lock().unwrap(), 2);
        assert!(kinds(&pool).contains(&EventKind::Free));
    }
}

/// A guard of a parent's thread is never dropped in a child. `Checked::new` does not wait for it.
#[test]
fn inherited_pool_can_be_checked_in_a_child() {
    let pool = SlabPool::new(MmapProvider::private(), SlabSettings::new()).unwrap();
    let block = pool.allocate(Layout::new(100, 8).unwrap()).unwrap();
    let guard = tracker::find(block).and_then(|found| found.owner.guard()).unwrap();
    // SAFETY: the block is this test's.
    unsafe { pool.free(block) }.unwrap();
    // SAFETY: the child uses the pool, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sets a timer that ends a child that hangs.
        unsafe { libc::alarm(60) };
        let checked = Checked::new(pool, CheckSettings::new().history(10));
        let code = i32::from(!checked.is_ok_and(|checked| free(&checked, allocate(&checked, 100)).is_ok()));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child cannot use a checked pool");
    drop(guard);
}
