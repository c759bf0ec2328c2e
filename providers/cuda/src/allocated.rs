//! Memory that the driver gives an address to: of a device, pinned, managed.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_sys::*;
use umf_core::{Address, Error, Layout, Region, Result};
use umf_suballoc::RegionTable;

use crate::builder::CudaMemory;
use crate::context::Context;
use crate::driver::{OWNER, error, memory_error};
use crate::live::{self, Origin};

/// RegionTable of device memory are whole pages of the device, since opening a part of one shows all of it.
pub(crate) const DEVICE_PAGE: usize = 2 << 20;
/// Pages of the host.
const HOST_PAGE: usize = 4096;
/// What is added at most, so that an address is aligned.
const LARGEST_ALIGNMENT: usize = 64 << 20;
/// In what managed memory moves.
const MANAGED_PAGE: usize = 64 << 10;

/// What the driver gave. Freed with the last who has it: the region, or an import in this process.
#[derive(Debug)]
pub(crate) struct Raw {
    context: Arc<Context>,
    kind: CudaMemory,
    pub(crate) address: CUdeviceptr,
}

impl Raw {
    fn new(context: &Arc<Context>, kind: CudaMemory, flags: Option<u32>, size: usize) -> Result<Self> {
        let current = context.enter()?;
        let mut address = 0;
        let made = match kind {
            // SAFETY: places for the answers, here and below.
            CudaMemory::Host => unsafe {
                let mut pointer = core::ptr::null_mut::<c_void>();
                let made = current.api().cuMemHostAlloc(
                    &raw mut pointer,
                    size,
                    flags.unwrap_or(CU_MEMHOSTALLOC_PORTABLE),
                );
                address = pointer.expose_provenance() as u64;
                made
            },
            // SAFETY: as above.
            CudaMemory::Managed => unsafe {
                current.api().cuMemAllocManaged(&raw mut address, size, flags.unwrap_or(CU_MEM_ATTACH_GLOBAL))
            },
            // SAFETY: as above.
            _ => unsafe { current.api().cuMemAlloc(&raw mut address, size) },
        };
        made.map_err(memory_error(size))?;
        Ok(Self { context: Arc::clone(context), kind, address })
    }

    pub(crate) const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Gives it back; on an error it is still there.
    fn free(&mut self) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        let freed = self.context.enter().and_then(|current| {
            // SAFETY: made in `new` and not freed before; by the contract of `Provider::free` nobody uses it.
            let freed = unsafe {
                match self.kind {
                    CudaMemory::Host => {
                        let address = usize::try_from(self.address).unwrap_or(0);
                        current.api().cuMemFreeHost(core::ptr::with_exposed_provenance_mut(address))
                    }
                    _ => current.api().cuMemFree(self.address),
                }
            };
            freed.map_err(error)
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

impl Drop for Raw {
    fn drop(&mut self) {
        if !self.context.driver().is_inherited() {
            let _ = self.free();
        }
    }
}

/// Whether an error says that the context, and so its memory, is gone.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Driver { code, .. }
        if u32::try_from(*code).is_ok_and(|code| CUresult(code).is_gone()))
}

/// The live regions of a provider.
#[derive(Debug)]
pub(crate) struct Allocated {
    context: Arc<Context>,
    kind: CudaMemory,
    flags: Option<u32>,
    live: Mutex<RegionTable<Arc<Raw>>>,
}

impl Allocated {
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

    fn lock(&self) -> MutexGuard<'_, RegionTable<Arc<Raw>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let page = self.page_size();
        let too_large = Error::OutOfMemory { size: layout.size(), owner: "the CUDA device", native: 0 };
        let size = layout.size().checked_next_multiple_of(page).ok_or(too_large)?;
        let align = layout.align().max(page);
        let mut raw = Raw::new(&self.context, self.kind, self.flags, size)?;
        if !raw.address.is_multiple_of(align as u64) {
            // Drivers do not take alignments: a part of more, within reason.
            drop(raw);
            if align > LARGEST_ALIGNMENT {
                return Err(Error::BadAlignment { align });
            }
            raw = Raw::new(&self.context, self.kind, self.flags, size.checked_add(align).ok_or(too_large)?)?;
        }
        let base = raw.address.next_multiple_of(align as u64);
        let base = usize::try_from(base).ok().and_then(Address::new).ok_or(too_large)?;
        let region = Region::new(base, size);
        self.lock().insert(region, Arc::new(raw))?;
        live::add(Origin::Allocated, base, size, &self.context);
        Ok(region)
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        let raw = self.lock().remove(region)?;
        live::remove(Origin::Allocated, region.base());
        live::forget_handle(raw.address);
        match Arc::try_unwrap(raw) {
            Ok(mut raw) => raw.free().inspect_err(|_| {
                live::add(Origin::Allocated, region.base(), region.size(), &self.context);
                // The node that the region had is most likely still free.
                let _ = self.lock().insert(*region, Arc::new(raw));
            }),
            // An import in this process still has it, and frees it.
            Err(_) => Ok(()),
        }
    }

    /// What the driver gave for a live region.
    pub(crate) fn raw_of(&self, region: &Region) -> Result<Arc<Raw>> {
        self.lock().get(region).map(Arc::clone)
    }
}
