//! [`SlabTable`]: all slabs of a pool, and those with free blocks.

use std::collections::{BTreeMap, BTreeSet};

use umf_core::statistics::PoolStatistics;
use umf_core::{Address, Error, Layout, Region, Result};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;

use crate::slab::{BlockState, Slab};

/// Blocks up to this size share a region.
const LARGEST_SHARED: usize = 32 << 10;
const SMALLEST: usize = 64;
/// Size of the regions of shared blocks.
const SLAB: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct SlabTable {
    /// By the first address of the region.
    slabs: BTreeMap<u64, Slab>,
    /// Partially used slabs of shared blocks: block size and first address.
    partial: BTreeSet<(usize, u64)>,
    pub(crate) statistics: PoolStatistics,
}

impl SlabTable {
    pub(crate) fn allocate(&mut self, upstream: &Upstream, layout: Layout) -> Result<Address> {
        let class = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
        let key = if class > LARGEST_SHARED {
            let (region, _) = upstream.allocate(layout)?;
            self.add(region, region.size())
        } else if let Some(&(_, key)) = self.partial.range((class, 0)..=(class, u64::MAX)).next() {
            key
        } else {
            let (region, _) = upstream.allocate(Layout::new(SLAB, class)?)?;
            let key = self.add(region, class);
            self.partial.insert((class, key));
            key
        };
        let none = Error::OutOfMemory { size: layout.size(), owner: "this class pool", native: 0 };
        let slab = self.slabs.get_mut(&key).ok_or(none)?;
        let address = slab.take().ok_or(none)?;
        if slab.is_full() {
            self.partial.remove(&(slab.block_size, key));
        }
        self.statistics.live_blocks += 1;
        self.statistics.live_bytes += slab.block_size as u64;
        self.statistics.allocations += 1;
        Ok(address)
    }

    fn add(&mut self, region: Region, block_size: usize) -> u64 {
        let key = region.base().to_bits();
        self.slabs.insert(key, Slab::new(region, block_size));
        let statistics = &mut self.statistics;
        statistics.regions += 1;
        statistics.reserved_bytes += region.size() as u64;
        statistics.peak_reserved_bytes = statistics.peak_reserved_bytes.max(statistics.reserved_bytes);
        key
    }

    /// Returns the slab that contains `address`.
    pub(crate) fn slab_at(&mut self, address: Address) -> Result<&mut Slab> {
        let below = self.slabs.range_mut(..=address.to_bits()).next_back().map(|(_, slab)| slab);
        let foreign = Error::ForeignAddress { address, owner: "this class pool" };
        below.filter(|slab| slab.region.contains(address)).ok_or(foreign)
    }

    /// Frees a block that is [`BlockState::Freed`].
    pub(crate) fn free(&mut self, upstream: &Upstream, address: Address) -> Result<()> {
        let size = self.end(upstream, address, BlockState::Live)?;
        self.count_free(size);
        Ok(())
    }

    /// Frees a block that is [`BlockState::Freed`], and returns its size. If the provider rejects
    /// its region, the block becomes `fallback`.
    pub(crate) fn end(
        &mut self,
        upstream: &Upstream,
        address: Address,
        fallback: BlockState,
    ) -> Result<usize> {
        let slab = self.slab_at(address)?;
        let (region, block_size) = (slab.region, slab.block_size);
        slab.set_state(address, BlockState::Free);
        if block_size > LARGEST_SHARED {
            if let Err(error) = self.release_region(upstream, region) {
                if let Ok(slab) = self.slab_at(address) {
                    slab.take();
                    slab.set_state(address, fallback);
                }
                return Err(error);
            }
        } else {
            self.partial.insert((block_size, region.base().to_bits()));
        }
        Ok(block_size)
    }

    pub(crate) fn count_free(&mut self, size: usize) {
        self.statistics.live_blocks -= 1;
        self.statistics.live_bytes -= size as u64;
        self.statistics.frees += 1;
    }

    fn release_region(&mut self, upstream: &Upstream, region: Region) -> Result<()> {
        // SAFETY: the region has no live block.
        let fate = unsafe { upstream.free(region) }?;
        let key = region.base().to_bits();
        if let Some(slab) = self.slabs.remove(&key) {
            self.partial.remove(&(slab.block_size, key));
        }
        if fate == FreeOutcome::Freed {
            self.count_released_region(region);
        }
        Ok(())
    }

    /// Updates the statistics after a region was released.
    pub(crate) fn count_released_region(&mut self, region: Region) {
        self.statistics.regions -= 1;
        self.statistics.reserved_bytes -= region.size() as u64;
    }

    /// Releases regions without live blocks, until `keep` bytes are free.
    pub(crate) fn trim(&mut self, upstream: &Upstream, keep: usize) -> Result<usize> {
        let empty: Vec<_> =
            self.slabs.values().filter(|slab| slab.is_empty()).map(|slab| slab.region).collect();
        let mut released = 0;
        for region in empty {
            let used = self.statistics.live_bytes + upstream.deferred().bytes;
            let free = self.statistics.reserved_bytes.saturating_sub(used);
            if free <= keep as u64 {
                break;
            }
            self.release_region(upstream, region)?;
            released += region.size();
        }
        Ok(released)
    }

    /// Removes and returns all slabs.
    pub(crate) fn take_all(&mut self) -> Vec<Slab> {
        std::mem::take(&mut self.slabs).into_values().collect()
    }
}
