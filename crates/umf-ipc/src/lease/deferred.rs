//! [`DeferredExports`]: retired exports that importers still have open, indexed by address.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use umf_core::Address;

use super::Scan;
use crate::exporter::NativeGuard;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub base: Address,
    pub size: usize,
}

impl AddressRange {
    /// Returns the first address as a number. Addresses of different spaces are different numbers.
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

/// A retired export. Its slot is not reused before all importers have closed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredExport {
    pub slot: u32,
    pub range: AddressRange,
    pub region: u64,
    /// Where the next scan for leases resumes.
    pub scan: Scan,
    /// A device may have imported the memory.
    pub is_device: bool,
    /// The export counts in [`DeferredNative::count`]. Set by [`DeferredExports::add`].
    pub has_native: bool,
}

/// The native export of a region, which is returned to the provider when no export of the region is
/// open.
#[derive(Debug)]
struct DeferredNative {
    guard: Arc<NativeGuard>,
    /// Number of deferred exports of this region.
    count: usize,
}

/// Retired exports that importers still have open, and the native exports that they need.
///
/// Exports of blocks do not overlap: the memory of a block is not reused while its export is here.
/// Exports of regions may overlap, because a provider over a pool has its regions inside of that
/// pool's.
#[derive(Debug, Default)]
pub(super) struct DeferredExports {
    /// Exports of blocks, by start address.
    blocks: BTreeMap<u64, Vec<DeferredExport>>,
    /// Exports of whole regions, by start address.
    regions: BTreeMap<u64, Vec<DeferredExport>>,
    /// Size of the largest region that was ever in `regions`.
    largest_region: u64,
    /// Native exports, by region id.
    natives: HashMap<u64, DeferredNative>,
    /// Regions whose native export is being returned to the provider.
    returning: Vec<AddressRange>,
    count: usize,
    bytes: u64,
}

impl DeferredExports {
    /// Adds an export of a block or of a whole region. `guard` is the region's native export,
    /// unless it was already returned.
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
        let exports = if is_region { &mut self.regions } else { &mut self.blocks };
        exports.entry(one.range.begin()).or_default().push(one);
        self.count += 1;
        self.bytes += size;
    }

    /// Returns the number of deferred exports and the sum of their sizes in bytes.
    pub(super) const fn size(&self) -> (usize, u64) {
        (self.count, self.bytes)
    }

    /// Returns the number of deferred exports and of native exports that are being returned.
    pub(super) fn pending(&self) -> usize {
        self.count + self.returning.len()
    }

    /// Returns the native export of a region.
    pub(super) fn native(&self, region: u64) -> Option<&Arc<NativeGuard>> {
        self.natives.get(&region).map(|native| &native.guard)
    }

    /// Removes the exports that overlap `range` and are no longer open. Returns whether an
    /// overlapping export is still open, the removed exports, and the native exports that are no
    /// longer needed.
    ///
    /// The caller drops the native exports without this lock, because providers take locks of their
    /// own. Then it calls [`DeferredExports::finish_returns`]; until then their regions count as
    /// open.
    pub(super) fn reclaim(
        &mut self,
        range: AddressRange,
        is_open: impl Fn(&mut DeferredExport) -> bool,
    ) -> (bool, Vec<DeferredExport>, Vec<Arc<NativeGuard>>) {
        let (mut closed, mut natives) = (Vec::new(), Vec::new());
        let mut is_left = self.returning.iter().any(|region_range| region_range.overlaps(range));
        let mut filter = |exports: &mut Vec<DeferredExport>| {
            exports.retain_mut(|one| {
                let overlaps = one.range.overlaps(range);
                let stays = !overlaps || is_open(one);
                is_left |= overlaps && stays;
                if !stays {
                    closed.push(*one);
                }
                stays
            });
        };
        // The last block that begins before the range may reach into it, and so may any region that
        // is large enough.
        let before = self.blocks.range(..range.begin()).next_back().map(|(begin, _)| *begin);
        let first = [before.unwrap_or(range.begin()), range.begin().saturating_sub(self.largest_region)];
        for (map, first) in [&mut self.blocks, &mut self.regions].into_iter().zip(first) {
            let mut empty = Vec::new();
            for (begin, exports) in map.range_mut(first..range.end()) {
                filter(exports);
                if exports.is_empty() {
                    empty.push(*begin);
                }
            }
            for begin in empty {
                map.remove(&begin);
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

    /// Notes that the native exports of these regions were returned to their provider.
    pub(super) fn finish_returns(&mut self, regions: &[AddressRange]) {
        for region in regions {
            if let Some(index) = self.returning.iter().position(|other| other == region) {
                self.returning.swap_remove(index);
            }
        }
    }
}

/// Returns the range of a native export's region.
pub(super) fn region_range(guard: &NativeGuard) -> AddressRange {
    AddressRange { base: guard.region.base(), size: guard.region.size() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use umf_core::{Layout, Provider, ProviderKind, Region, Result};

    /// A provider of addresses without memory.
    struct Nothing;

    // SAFETY: the tests do not access the memory that its regions name.
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
        /// Compares the remaining exports, the reclaimed ones and the native exports with a list
        /// that is searched linearly.
        #[test]
        fn deferred_exports_behave_like_a_list(
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
                    // While its native export is being returned, the region counts as open.
                    prop_assert!(left.reclaim(region_range(guard), |_| true).0);
                }
                left.finish_returns(&natives.iter().map(|guard| region_range(guard)).collect::<Vec<_>>());
                prop_assert_eq!(left.size(), (list.len(), list.iter().map(|one| one.range.size as u64).sum()));
                prop_assert_eq!(left.pending(), list.len());
            }
        }
    }
}
