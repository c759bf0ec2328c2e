//! [`Heap`]: regions of memory kinds `device`, `host` and `managed`. The driver allocates each
//! region and chooses its address.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_sys::*;
use umf_core::{Address, Error, Layout, Region, Result};
use umf_suballoc::RegionTable;

use crate::address_map::{self, MemoryOrigin};
use crate::builder::CudaMemory;
use crate::context::Context;
use crate::driver::{OWNER, allocation_error, driver_error};

/// Size of device regions is a multiple of this: the driver shares whole blocks of 2 MiB, so that
/// exporting a smaller region would share its neighbours.
pub(crate) const DEVICE_PAGE: usize = 2 << 20;
/// Page size of pinned host memory.
const HOST_PAGE: usize = 4096;
/// The largest alignment that is reached by allocating more and using a part.
const LARGEST_ALIGNMENT: usize = 64 << 20;
/// Granularity in which managed memory migrates.
const MANAGED_PAGE: usize = 64 << 10;

/// A live allocation of the driver. Shared by its region and by imports of its handle in the same
/// process; the last of them frees it.
#[derive(Debug)]
pub(crate) struct Allocation {
    context: Arc<Context>,
    kind: CudaMemory,
    pub(crate) address: CUdeviceptr,
}

impl Allocation {
    fn new(context: &Arc<Context>, kind: CudaMemory, flags: Option<u32>, size: usize) -> Result<Self> {
        let current = context.enter()?;
        let mut address = 0;
        let result = match kind {
            // SAFETY: the pointers to the results are valid for writes.
            CudaMemory::Host => unsafe {
                let mut pointer = core::ptr::null_mut::<c_void>();
                let result = current.api().cuMemHostAlloc(
                    &raw mut pointer,
                    size,
                    flags.unwrap_or(CU_MEMHOSTALLOC_PORTABLE),
                );
                address = pointer.expose_provenance() as u64;
                result
            },
            // SAFETY: the pointer to the result is valid for writes.
            CudaMemory::Managed => unsafe {
                current.api().cuMemAllocManaged(&raw mut address, size, flags.unwrap_or(CU_MEM_ATTACH_GLOBAL))
            },
            // SAFETY: the pointer to the result is valid for writes.
            _ => unsafe { current.api().cuMemAlloc(&raw mut address, size) },
        };
        result.map_err(allocation_error(size))?;
        Ok(Self { context: Arc::clone(context), kind, address })
    }

    pub(crate) const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Frees the allocation. After an error it is still live.
    fn free(&mut self) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        let freed = self.context.enter().and_then(|current| {
            // SAFETY: allocated in `new` and not freed before. By the contract of `Provider::free`,
            // the memory is unused.
            let freed = unsafe {
                match self.kind {
                    CudaMemory::Host => {
                        let address = usize::try_from(self.address).unwrap_or(0);
                        current.api().cuMemFreeHost(core::ptr::with_exposed_provenance_mut(address))
                    }
                    _ => current.api().cuMemFree(self.address),
                }
            };
            freed.map_err(driver_error)
        });
        match freed {
            Err(error) if !is_gone(&error) => Err(error),
            _ => {
                self.address = 0;
                Ok(())
            }
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.context.driver().is_inherited() {
            let _ = self.free();
        }
    }
}

/// Returns whether an error means that the context, and with it its memory, is gone.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Driver { code, .. }
        if u32::try_from(*code).is_ok_and(|code| CUresult(code).is_gone()))
}

/// The regions of a provider of kind `device`, `host` or `managed`.
#[derive(Debug)]
pub(crate) struct Heap {
    context: Arc<Context>,
    kind: CudaMemory,
    flags: Option<u32>,
    live: Mutex<RegionTable<Arc<Allocation>>>,
}

impl Heap {
    pub(crate) fn new(context: Arc<Context>, kind: CudaMemory, flags: Option<u32>) -> Self {
        Self { context, kind, flags, live: Mutex::new(RegionTable::new(OWNER)) }
    }

    pub(crate) const fn page_size(&self) -> usize {
        match self.kind {
            CudaMemory::Host => HOST_PAGE,
            CudaMemory::Managed => MANAGED_PAGE,
            _ => DEVICE_PAGE,
        }
    }

    fn lock(&self) -> MutexGuard<'_, RegionTable<Arc<Allocation>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let page = self.page_size();
        let too_large = Error::OutOfMemory { size: layout.size(), owner: "the CUDA device", native: 0 };
        let size = layout.size().checked_next_multiple_of(page).ok_or(too_large)?;
        let align = layout.align().max(page);
        let mut allocation = Allocation::new(&self.context, self.kind, self.flags, size)?;
        if !allocation.address.is_multiple_of(align as u64) {
            // The driver takes no alignment: allocate more, and use an aligned part.
            drop(allocation);
            if align > LARGEST_ALIGNMENT {
                return Err(Error::BadAlignment { align });
            }
            allocation = Allocation::new(
                &self.context,
                self.kind,
                self.flags,
                size.checked_add(align).ok_or(too_large)?,
            )?;
        }
        let base = allocation.address.next_multiple_of(align as u64);
        let base = usize::try_from(base).ok().and_then(Address::new).ok_or(too_large)?;
        let region = Region::new(base, size);
        self.lock().insert(region, Arc::new(allocation))?;
        address_map::add(MemoryOrigin::Allocated, base, size, &self.context);
        Ok(region)
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        let allocation = self.lock().remove(region)?;
        address_map::remove(MemoryOrigin::Allocated, region.base());
        address_map::remove_exported_handles(allocation.address);
        match Arc::try_unwrap(allocation) {
            Ok(mut allocation) => allocation.free().inspect_err(|_| {
                address_map::add(MemoryOrigin::Allocated, region.base(), region.size(), &self.context);
                // Uses the node that `remove` released, unless another thread took it.
                let _ = self.lock().insert(*region, Arc::new(allocation));
            }),
            // An import in this process still shares the allocation, and frees it.
            Err(_) => Ok(()),
        }
    }

    /// Returns the allocation behind a live region.
    pub(crate) fn allocation_of(&self, region: &Region) -> Result<Arc<Allocation>> {
        self.lock().get(region).map(Arc::clone)
    }
}
