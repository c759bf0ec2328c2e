//! [`DeferredExports`]: retired exports that are still open elsewhere, found by their memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use umf_core::Address;

use super::Scan;
use crate::exporter::NativeGuard;

/// A range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub base: Address,
    pub size: usize,
}

impl AddressRange {
    /// Addresses of other spaces are other numbers.
    const fn begin(self) -> u64 {
        self.base.to_bits()
    }

    const fn end(self) -> u64 {
        self.begin().saturating_add(self.size as u64)
    }

    pub(super) const fn overlaps(self, other: Self) -> bool {
        self.begin() < other.end() && other.begin() < self.end()
    }
}

/// A retired export. Its slot is not used again before it is closed everywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredExport {
    pub slot: u32,
    pub range: AddressRange,
    pub region: u64,
    /// Where its leases are looked for next.
    pub scan: Scan,
    /// A device may have imported the memory.
    pub is_device: bool,
    /// It counts among those that keep the region's native export. [`DeferredExports::add`] decides.
    pub has_native: bool,
}

/// Native exports that go back to their provider once nothing of their region is open.
#[derive(Debug)]
struct DeferredNative {
    guard: Arc<NativeGuard>,
    /// How many of the exports are of this region.
    count: usize,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct DeferredExports {
    /// Of blocks, by where they begin. As the memory of one is not used again while it is here, two of different blocks do
    /// not overlap.
    blocks: BTreeMap<u64, Vec<DeferredExport>>,
    /// Of whole regions, likewise. That of a provider over a pool lies in one of the pool.
    regions: BTreeMap<u64, Vec<DeferredExport>>,
    /// The size of the largest region that was ever in `regions`.
    largest_region: u64,
    /// By region.
    natives: HashMap<u64, DeferredNative>,
    /// Regions whose native export is on its way back to the provider.
    returning: Vec<AddressRange>,
    count: usize,
    bytes: u64,
}

impl DeferredExports {
    /// Adds one of a block, or of a whole region; `guard` is the region's native export, if it has not gone back by now.
    pub(super) fn add(&mut self, mut one: DeferredExport, is_region: bool, guard: Option<&Arc<NativeGuard>>) {
        let size = one.range.size as u64;
        if is_region {
            self.largest_region = self.largest_region.max(size);
        }
        if let Some(guard) = guard {
            let native = || DeferredNative { guard: Arc::clone(guard), count: 0 };
            self.natives.entry(one.region).or_insert_with(native).count += 1;
        } else if let Some(native) = self.natives.get_mut(&one.region) {
            native.count += 1;
        }
        one.has_native = self.natives.contains_key(&one.region);
        let those = if is_region { &mut self.regions } else { &mut self.blocks };
        those.entry(one.range.begin()).or_default().push(one);
        self.count += 1;
        self.bytes += size;
    }

    /// How many there are, and how many bytes they have.
    pub(super) const fn size(&self) -> (usize, u64) {
        (self.count, self.bytes)
    }

    /// How many there are, and native exports on their way back.
    pub(super) fn pending(&self) -> usize {
        self.count + self.returning.len()
    }

    pub(super) fn native_of(&self, region: u64) -> Option<Arc<NativeGuard>> {
        self.natives.get(&region).map(|native| Arc::clone(&native.guard))
    }

    /// Takes out what meets a range and is not open any more. Whether something is left there; what was taken out; and the
    /// native exports that nobody needs any more. These are to be dropped without a lock that providers' locks are taken
    /// before, and then [`DeferredExports::finish_returns`] is to be called: until then their regions count as open.
    pub(super) fn reclaim(
        &mut self,
        range: AddressRange,
        is_open: impl Fn(&mut DeferredExport) -> bool,
    ) -> (bool, Vec<DeferredExport>, Vec<Arc<NativeGuard>>) {
        let (mut closed, mut natives) = (Vec::new(), Vec::new());
        let mut is_left = self.returning.iter().any(|region_range| region_range.overlaps(range));
        let mut look = |some: &mut Vec<DeferredExport>| {
            some.retain_mut(|one| {
                let overlaps = one.range.overlaps(range);
                let stays = !overlaps || is_open(one);
                is_left |= overlaps && stays;
                if !stays {
                    closed.push(*one);
                }
                stays
            });
        };
        // The last that begins before the range may reach into it, and so may any region that is large enough.
        let before = self.blocks.range(..range.begin()).next_back().map(|(begin, _)| *begin);
        let first = [before.unwrap_or(range.begin()), range.begin().saturating_sub(self.largest_region)];
        for (some, first) in [&mut self.blocks, &mut self.regions].into_iter().zip(first) {
            let mut empty = Vec::new();
            for (begin, at_once) in some.range_mut(first..range.end()) {
                look(at_once);
                if at_once.is_empty() {
                    empty.push(*begin);
                }
            }
            for begin in empty {
                some.remove(&begin);
            }
        }
        for one in &closed {
            self.count -= 1;
            self.bytes -= one.range.size as u64;
            if one.has_native
                && let Some(native) = self.natives.get_mut(&one.region)
            {
                native.count -= 1;
                if native.count == 0
                    && let Some(native) = self.natives.remove(&one.region)
                {
                    self.returning.push(region_range(&native.guard));
                    natives.push(native.guard);
                }
            }
        }
        (is_left, closed, natives)
    }

    /// The native exports of these regions are back with their provider.
    pub(super) fn finish_returns(&mut self, regions: &[AddressRange]) {
        for region in regions {
            if let Some(place) = self.returning.iter().position(|other| other == region) {
                self.returning.swap_remove(place);
            }
        }
    }
}

/// All of a native export's region.
pub(super) fn region_range(guard: &NativeGuard) -> AddressRange {
    AddressRange { base: guard.region.base(), size: guard.region.size() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use umf_core::{Layout, Provider, ProviderKind, Region, Result};

    /// Gives out numbers.
    struct Nothing;

    // SAFETY: nobody touches the memory that its regions name.
    unsafe impl Provider for Nothing {
        fn name(&self) -> &str {
            "nothing"
        }

        fn kind(&self) -> ProviderKind {
            ProviderKind::HOST
        }

        fn memory_kind(&self) -> umf_core::MemoryKind {
            umf_core::MemoryKind::Host
        }

        fn visibility(&self) -> umf_core::Visibility {
            umf_core::Visibility::Private
        }

        fn page_size(&self) -> usize {
            4096
        }

        fn allocate(&self, _layout: Layout) -> Result<Region> {
            Err(umf_core::Error::Frozen { what: "nothing" })
        }

        unsafe fn free(&self, _region: Region) -> Result<()> {
            Ok(())
        }
    }

    fn guard(index: u64) -> Arc<NativeGuard> {
        let region = Region::new(Address::from_bits((index + 1) << 20), 1 << 20);
        let provider: Arc<dyn Provider> = Arc::new(Nothing);
        Arc::new(NativeGuard { region, provider: provider.into(), native: None, identity: None })
    }

    proptest! {
        /// Against a list that is looked through: what is left, what is closed, and which native exports go.
        #[test]
        fn as_a_list_would_have_it(
            added in prop::collection::vec((0_u64..4, 0_u64..16, any::<bool>()), 0..60),
            asked in prop::collection::vec((0_u64..5, 0_u64..16, 1_usize..(2 << 20), any::<u8>()), 1..30),
        ) {
            let guards: Vec<_> = (0..4).map(guard).collect();
            let mut left = DeferredExports::default();
            let mut list: Vec<DeferredExport> = Vec::new();
            for (slot, (region, block, is_region)) in (0..).zip(added) {
                let region_range = region_range(&guards[region as usize]);
                let base = Address::from_bits(region_range.base.to_bits() + (block << 16));
                let range = if is_region { region_range } else { AddressRange { base, size: 1 << 16 } };
                let region_id = guards[region as usize].region.id().get();
                let one = DeferredExport {
                    slot,
                    range,
                    region: region_id,
                    scan: Scan::default(),
                    is_device: false,
                    has_native: false,
                };
                left.add(one, is_region, Some(&guards[region as usize]));
                list.push(one);
            }
            for (region, block, size, open) in asked {
                let range = AddressRange { base: Address::from_bits(((region + 1) << 20) + (block << 16)), size };
                let is_open = |one: &mut DeferredExport| one.slot % 8 != u32::from(open) % 8;
                let before: Vec<_> = list.iter().map(|one| one.region).collect();
                let mut expected: Vec<u32> =
                    list.iter_mut().filter_map(|one| (one.range.overlaps(range) && !is_open(one)).then_some(one.slot)).collect();
                list.retain_mut(|one| !one.range.overlaps(range) || is_open(one));
                let (is_left, closed, natives) = left.reclaim(range, is_open);
                let mut closed: Vec<u32> = closed.iter().map(|one| one.slot).collect();
                closed.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(closed, expected);
                prop_assert_eq!(is_left, list.iter().any(|one| one.range.overlaps(range)));
                for guard in &natives {
                    let id = guard.region.id().get();
                    prop_assert!(before.contains(&id) && !list.iter().any(|one| one.region == id));
                    // On its way, the region counts as open.
                    prop_assert!(left.reclaim(region_range(guard), |_| true).0);
                }
                left.finish_returns(&natives.iter().map(|guard| region_range(guard)).collect::<Vec<_>>());
                prop_assert_eq!(left.size(), (list.len(), list.iter().map(|one| one.range.size as u64).sum()));
                prop_assert_eq!(left.pending(), list.len());
            }
        }
    }
}
