//! [`Slab`]: a region that is divided into blocks of one size. [`SlabTable`]: all slabs of a pool, and
//! those with free blocks.

use std::collections::{BTreeMap, BTreeSet};

use umf_core::statistics::PoolStatistics;
use umf_core::{Address, BlockSpan, Error, Layout, Region, Result};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;

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
        let out_of_memory = Error::OutOfMemory { size: layout.size(), owner: "this class pool", native: 0 };
        let slab = self.slabs.get_mut(&key).ok_or(out_of_memory)?;
        let address = slab.allocate().ok_or(out_of_memory)?;
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
        let size = self.free_uncounted(upstream, address, BlockState::Live)?;
        self.count_free(size);
        Ok(())
    }

    /// Frees a block that is [`BlockState::Freed`], without counting it. Returns its size. If the
    /// provider does not free the region of a large block, the block becomes `fallback`.
    pub(crate) fn free_uncounted(
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
                    slab.allocate();
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
        let outcome = unsafe { upstream.free(region) }?;
        let key = region.base().to_bits();
        if let Some(slab) = self.slabs.remove(&key) {
            self.partial.remove(&(slab.block_size, key));
        }
        if outcome == FreeOutcome::Freed {
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

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    Free,
    Live,
    /// Live and exported. Its free must be announced to exporters.
    Exported,
    /// Freed by its owner, but not reusable yet: being announced, or deferred because other
    /// processes have it open.
    Freed,
}

/// A region that is divided into blocks of one size.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) region: Region,
    pub(crate) block_size: usize,
    states: Vec<BlockState>,
    /// The numbers of the free blocks.
    free: Vec<usize>,
}

impl Slab {
    pub(crate) fn new(region: Region, block_size: usize) -> Self {
        let count = region.size() / block_size;
        Self { region, block_size, states: vec![BlockState::Free; count], free: (0..count).rev().collect() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.states.len()
    }

    /// Allocates a block.
    fn allocate(&mut self) -> Option<Address> {
        let number = self.free.pop()?;
        self.states[number] = BlockState::Live;
        self.region.base().checked_add((number * self.block_size) as u64)
    }

    fn number_at(&self, address: Address) -> Option<usize> {
        let offset = usize::try_from(address.offset_from(self.region.base())?).ok()?;
        Some(offset / self.block_size).filter(|&number| number < self.states.len())
    }

    /// Returns the live block that contains `address`.
    pub(crate) fn block_at(&self, address: Address) -> Result<BlockSpan> {
        let not_allocated = Error::NotAllocated { address };
        let number = self.number_at(address).ok_or(not_allocated)?;
        if !matches!(self.states[number], BlockState::Live | BlockState::Exported) {
            return Err(not_allocated);
        }
        let start = self.region.base().checked_add((number * self.block_size) as u64).ok_or(not_allocated)?;
        Ok(BlockSpan { address: start, size: self.block_size })
    }

    /// Returns the state of the live block that begins at `address`.
    pub(crate) fn state_at(&mut self, address: Address) -> Result<&mut BlockState> {
        if self.block_at(address)?.address != address {
            return Err(Error::InteriorAddress { address });
        }
        let number = self.number_at(address).ok_or(Error::NotAllocated { address })?;
        Ok(&mut self.states[number])
    }

    /// Changes the state of a block that is [`BlockState::Freed`].
    pub(crate) fn set_state(&mut self, address: Address, state: BlockState) {
        if let Some(number) = self.number_at(address) {
            self.states[number] = state;
            if state == BlockState::Free {
                self.free.push(number);
            }
        }
    }

    /// Returns the exported blocks.
    pub(crate) fn exported(&self) -> impl Iterator<Item = Address> {
        let numbers = self.states.iter().enumerate().filter(|(_, state)| **state == BlockState::Exported);
        numbers.filter_map(|(number, _)| self.region.base().checked_add((number * self.block_size) as u64))
    }
}
