//! The pools of umf that are measured.

use umf::host::HostProvider;
use umf::slab::SlabSettings;
use umf::{Address, Layout, Pool};

use super::allocator::Allocator;
use crate::bench::measure::told;
use crate::failure::Failure;

/// All sizes of the workloads are pooled.
const LARGEST_POOLED: usize = 4 << 20;

/// A slab pool over private memory, by the interface that applications use.
pub(super) struct Slab(Pool);

impl Slab {
    pub(super) fn new() -> Result<Slab, Failure> {
        let provider = HostProvider::builder().name("bench").build().map_err(told)?;
        let settings = SlabSettings::new().name("bench").max_poolable_size(LARGEST_POOLED);
        Ok(Slab(Pool::builder().provider(provider).slab(settings).build().map_err(told)?))
    }
}

impl Allocator for Slab {
    type Block = Address;
    type Error = umf::core::Error;

    #[inline]
    fn allocate(&self, size: usize) -> Result<Address, umf::core::Error> {
        umf::core::pool::allocate(self.0.as_core(), Layout::new(size, 8)?)
    }

    #[inline]
    unsafe fn free(&self, block: Address, _size: usize) -> Result<(), umf::core::Error> {
        // SAFETY: the caller's contract.
        unsafe { umf::core::pool::free(self.0.as_core(), block) }
    }

    fn pointer(&self, block: Address) -> Option<*mut u8> {
        block.as_ptr()
    }

    fn reserved(&self) -> Option<u64> {
        Some(self.0.statistics().reserved_bytes)
    }
}

/// The same, by somebody who has forgotten from which pool a block is.
pub(super) struct WithoutPool(pub Slab);

impl Allocator for WithoutPool {
    type Block = Address;
    type Error = umf::core::Error;

    #[inline]
    fn allocate(&self, size: usize) -> Result<Address, umf::core::Error> {
        self.0.allocate(size)
    }

    #[inline]
    unsafe fn free(&self, address: Address, _size: usize) -> Result<(), umf::core::Error> {
        // SAFETY: the caller's contract.
        unsafe { umf::core::tracker::free(address) }
    }

    fn pointer(&self, block: Address) -> Option<*mut u8> {
        self.0.pointer(block)
    }
}
