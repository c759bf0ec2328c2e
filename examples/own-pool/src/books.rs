//! [`Books`]: all slabs of a pool, and where there is room.

use std::collections::{BTreeMap, BTreeSet};

use umf_core::statistics::PoolStatistics;
use umf_core::{Address, Error, Layout, Region, Result};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;

use crate::slab::{Slab, State};

/// Blocks up to this size share a region.
const LARGEST_SHARED: usize = 32 << 10;
const SMALLEST: usize = 64;
/// What is asked of the provider for blocks that share.
const SLAB: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Books {
    /// By the first address of the region.
    slabs: BTreeMap<u64, Slab>,
    /// Slabs of shared blocks that are not full: block size and first address.
    room: BTreeSet<(usize, u64)>,
    pub(crate) statistics: PoolStatistics,
}

impl Books {
    pub(crate) fn allocate(&mut self, upstream: &Upstream, layout: Layout) -> Result<Address> {
        let class = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
        let key = if class > LARGEST_SHARED {
            let (region, _) = upstream.allocate(layout)?;
            self.add(region, region.size())
        } else if let Some(&(_, key)) = self.room.range((class, 0)..=(class, u64::MAX)).next() {
            key
        } else {
            let (region, _) = upstream.allocate(Layout::new(SLAB, class)?)?;
            let key = self.add(region, class);
            self.room.insert((class, key));
            key
        };
        let none = Error::OutOfMemory { size: layout.size(), owner: "this class pool", native: 0 };
        let slab = self.slabs.get_mut(&key).ok_or(none)?;
        let address = slab.take().ok_or(none)?;
        if slab.is_full() {
            self.room.remove(&(slab.block_size, key));
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

    /// The slab that holds `address`.
    pub(crate) fn slab_at(&mut self, address: Address) -> Result<&mut Slab> {
        let below = self.slabs.range_mut(..=address.to_bits()).next_back().map(|(_, slab)| slab);
        let foreign = Error::ForeignAddress { address, owner: "this class pool" };
        below.filter(|slab| slab.region.contains(address)).ok_or(foreign)
    }

    /// Frees a block that is [`State::Leaving`].
    pub(crate) fn free(&mut self, upstream: &Upstream, address: Address) -> Result<()> {
        let size = self.end(upstream, address, State::Live)?;
        self.count_free(size);
        Ok(())
    }

    /// Makes a block that is [`State::Leaving`] free, and yields its size. If its region is not taken back, it becomes
    /// `refused`.
    pub(crate) fn end(&mut self, upstream: &Upstream, address: Address, refused: State) -> Result<usize> {
        let slab = self.slab_at(address)?;
        let (region, block_size) = (slab.region, slab.block_size);
        slab.settle(address, State::Free);
        if block_size > LARGEST_SHARED {
            if let Err(error) = self.give_back(upstream, region) {
                if let Ok(slab) = self.slab_at(address) {
                    slab.take();
                    slab.settle(address, refused);
                }
                return Err(error);
            }
        } else {
            self.room.insert((block_size, region.base().to_bits()));
        }
        Ok(block_size)
    }

    pub(crate) fn count_free(&mut self, size: usize) {
        self.statistics.live_blocks -= 1;
        self.statistics.live_bytes -= size as u64;
        self.statistics.frees += 1;
    }

    fn give_back(&mut self, upstream: &Upstream, region: Region) -> Result<()> {
        // SAFETY: the region has no live block.
        let fate = unsafe { upstream.free(region) }?;
        let key = region.base().to_bits();
        if let Some(slab) = self.slabs.remove(&key) {
            self.room.remove(&(slab.block_size, key));
        }
        if fate == FreeOutcome::Freed {
            self.remove_region(region);
        }
        Ok(())
    }

    /// The provider has a region back.
    pub(crate) fn remove_region(&mut self, region: Region) {
        self.statistics.regions -= 1;
        self.statistics.reserved_bytes -= region.size() as u64;
    }

    /// Gives regions without live blocks back, until `keep` bytes are left free.
    pub(crate) fn trim(&mut self, upstream: &Upstream, keep: usize) -> Result<usize> {
        let empty: Vec<_> =
            self.slabs.values().filter(|slab| slab.is_empty()).map(|slab| slab.region).collect();
        let mut went = 0;
        for region in empty {
            let used = self.statistics.live_bytes + upstream.deferred().bytes;
            let free = self.statistics.reserved_bytes.saturating_sub(used);
            if free <= keep as u64 {
                break;
            }
            self.give_back(upstream, region)?;
            went += region.size();
        }
        Ok(went)
    }

    /// All slabs, which are taken out.
    pub(crate) fn take_all(&mut self) -> Vec<Slab> {
        std::mem::take(&mut self.slabs).into_values().collect()
    }
}
