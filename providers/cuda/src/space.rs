//! A large reserved range of addresses, into which physical memory is mapped as regions come, and out of which it goes with them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_sys::*;
use umf_core::{Access, Address, Error, Layout, Region, Result};
use umf_suballoc::Suballocator;

use crate::allocated::is_gone;
use crate::context::Context;
use crate::driver::error;
use crate::live::{self, Origin};
use crate::physical::{self, Physical};

/// The range and what is in it. Each region has physical memory of its own, and so shows nothing else when it is exported.
#[derive(Debug)]
pub(crate) struct Space {
    context: Arc<Context>,
    /// Devices that may use the memory, beside the one it is on.
    peers: Vec<CUdevice>,
    properties: Wanted,
    granularity: usize,
    start: CUdeviceptr,
    size: usize,
    suballocator: Suballocator,
    physical: Mutex<HashMap<u64, Physical>>,
}

/// In which forms the memory may be given away.
#[derive(Clone, Copy, Debug)]
struct Wanted(CUmemAllocationHandleType);

impl Space {
    /// Reserves `size` bytes of addresses; four times the device's memory, for 0.
    pub(crate) fn new(
        context: Arc<Context>,
        peers: Vec<CUdevice>,
        size: usize,
        fabric: bool,
    ) -> Result<Self> {
        let device = context.driver().device(context.device())?;
        if !device.has_virtual {
            return Err(Error::NotSupported {
                what: "memory kind \"virtual\" (use \"device\")",
                owner: "this CUDA device",
                native: 0,
            });
        }
        let mut forms = if device.has_fds { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 } else { 0 };
        if fabric {
            if !device.has_fabric {
                return Err(Error::NotSupported {
                    what: "fabric handles (they need NVLink switches and nvidia-imex)",
                    owner: "this CUDA device or system",
                    native: 0,
                });
            }
            forms = CU_MEM_HANDLE_TYPE_FABRIC.0;
        }
        let forms = CUmemAllocationHandleType(forms);
        let api = context.driver().api();
        let properties = physical::properties(context.device(), forms);
        let mut granularity = 0;
        // SAFETY: a place for the answer, and what is asked about.
        unsafe {
            api.cuMemGetAllocationGranularity(
                &raw mut granularity,
                &raw const properties,
                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        }
        .map_err(error)?;
        if !granularity.is_power_of_two() {
            return Err(Error::NotSupported {
                what: "a granularity that is no power of two",
                owner: "the CUDA provider",
                native: 0,
            });
        }
        let all = usize::try_from(device.memory).unwrap_or(usize::MAX).saturating_mul(4);
        let wanted = if size == 0 { all.min(1 << 46) } else { size };
        let size = wanted
            .checked_next_multiple_of(granularity)
            .ok_or(Error::InvalidArgument { what: "reserve", why: "is more than there are addresses" })?;
        let start = {
            let _current = context.enter()?;
            physical::reserve(&context, size, granularity)?
        };
        let suballocator = Suballocator::new(
            start,
            start.saturating_add(size as u64),
            "the range that the CUDA provider reserved",
        );
        let suballocator = suballocator.inspect_err(|_| {
            let _ = physical::give_back(&context, start, size);
        })?;
        let physical = Mutex::default();
        Ok(Self {
            context,
            peers,
            properties: Wanted(forms),
            granularity,
            start,
            size,
            suballocator,
            physical,
        })
    }

    pub(crate) const fn page_size(&self) -> usize {
        self.granularity
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Physical>> {
        self.physical.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let too_large = Error::OutOfMemory { size: layout.size(), owner: "the CUDA device", native: 0 };
        let size = layout.size().checked_next_multiple_of(self.granularity).ok_or(too_large)?;
        let align = layout.align().max(self.granularity) as u64;
        let _current = self.context.enter()?;
        self.suballocator.allocate(size, align, |place| {
            let base = usize::try_from(place).ok().and_then(Address::new).ok_or(too_large)?;
            let properties = physical::properties(self.context.device(), self.properties.0);
            let made = Physical::make(&self.context, size, &properties)?;
            let devices = core::iter::once(self.context.device()).chain(self.peers.iter().copied());
            if let Err(error) = made.map(&self.context, place, size, devices, Access::ReadWrite) {
                let _ = made.release(&self.context);
                return Err(error);
            }
            self.lock().insert(place, made);
            live::add(Origin::Allocated, base, size, &self.context);
            Ok(base)
        })
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        self.suballocator.free(region, |place| {
            let Some(made) = self.lock().get(&place).copied() else { return Ok(()) };
            live::remove(Origin::Allocated, region.base());
            // Mappings belong to no context: they can go without.
            let _current = self.context.enter().ok();
            let freed = physical::unmap(&self.context, place, region.size()).map(|()| {
                // Nothing shows it any more: whatever the answer is, it goes with the last other who has it.
                let _ = made.release(&self.context);
            });
            match freed {
                Err(error) if !is_gone(&error) => {
                    live::add(Origin::Allocated, region.base(), region.size(), &self.context);
                    Err(error)
                }
                _ => {
                    self.lock().remove(&place);
                    Ok(())
                }
            }
        })
    }

    /// Whether what is exported has a file descriptor.
    pub(crate) fn has_fds(&self) -> bool {
        self.properties.0 == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    }

    /// The physical memory of a live region, and the context that it is in; nothing if it cannot be exported.
    pub(crate) fn physical_of(&self, region: &Region) -> Result<Physical> {
        let place = self.suballocator.place_of(region)?;
        if self.properties.0 == CU_MEM_HANDLE_TYPE_NONE {
            return Err(Error::NotSupported {
                what: "file descriptors of physical memory (use memory kind \"device\")",
                owner: "this CUDA device or system",
                native: 0,
            });
        }
        self.lock().get(&place).copied().ok_or(Error::NotAllocated { address: region.base() })
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.suballocator.place_of(region).map(drop)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // Regions that were not freed keep their place: whoever has one may still use it.
        if self.context.driver().is_inherited() || self.suballocator.live() > 0 {
            return;
        }
        let _current = self.context.enter().ok();
        let _ = physical::give_back(&self.context, self.start, self.size);
    }
}
