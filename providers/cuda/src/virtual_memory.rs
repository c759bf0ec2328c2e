//! Memory of kind `virtual`. [`VirtualRange`]: a reserved range of addresses, suballocated to
//! regions. [`PhysicalMemory`]: the physical memory that is mapped for each region, and exported.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_sys::*;
use umf_core::{Access, Address, Error, Layout, Region, Result};
use umf_suballoc::Suballocator;

use crate::address_map::{self, MemoryOrigin};
use crate::context::Context;
use crate::driver::{allocation_error, driver_error};
use crate::heap::is_gone;

/// A reserved range of addresses and its regions. Each region has physical memory of its own, so
/// that exporting it shares nothing else.
#[derive(Debug)]
pub(crate) struct VirtualRange {
    context: Arc<Context>,
    /// Other devices that may access the memory.
    peers: Vec<CUdevice>,
    handle_types: CUmemAllocationHandleType,
    granularity: usize,
    start: CUdeviceptr,
    size: usize,
    suballocator: Suballocator,
    /// The physical memory of live regions, by address.
    physical: Mutex<HashMap<u64, PhysicalMemory>>,
}

impl VirtualRange {
    /// Reserves `size` bytes of addresses, or four times the device's memory if `size` is 0.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the device lacks virtual memory or fabric handles;
    /// [`Error::InvalidArgument`] if `size` is too large; errors of the driver.
    pub(crate) fn new(
        context: Arc<Context>,
        peers: Vec<CUdevice>,
        size: usize,
        fabric: bool,
    ) -> Result<Self> {
        let device = context.driver().device_info(context.device())?;
        if !device.has_virtual {
            return Err(Error::NotSupported {
                what: "memory kind \"virtual\" (use \"device\")",
                owner: "this CUDA device",
                native: 0,
            });
        }
        let mut handle_types = if device.has_fds { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 } else { 0 };
        if fabric {
            if !device.has_fabric {
                return Err(Error::NotSupported {
                    what: "fabric handles (they need NVLink switches and nvidia-imex)",
                    owner: "this CUDA device or system",
                    native: 0,
                });
            }
            handle_types = CU_MEM_HANDLE_TYPE_FABRIC.0;
        }
        let handle_types = CUmemAllocationHandleType(handle_types);
        let api = context.driver().api();
        let properties = properties(context.device(), handle_types);
        let mut granularity = 0;
        // SAFETY: the pointers to the result and to the properties are valid.
        unsafe {
            api.cuMemGetAllocationGranularity(
                &raw mut granularity,
                &raw const properties,
                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        }
        .map_err(driver_error)?;
        if !granularity.is_power_of_two() {
            return Err(Error::NotSupported {
                what: "an allocation granularity that is not a power of two",
                owner: "the CUDA provider",
                native: 0,
            });
        }
        let all = usize::try_from(device.memory).unwrap_or(usize::MAX).saturating_mul(4);
        let wanted = if size == 0 { all.min(1 << 46) } else { size };
        let size = wanted.checked_next_multiple_of(granularity).ok_or(Error::InvalidArgument {
            what: "reserve",
            why: "must be below the size of the address space",
        })?;
        let start = {
            let _current = context.enter()?;
            reserve_addresses(&context, size, granularity)?
        };
        let suballocator = Suballocator::new(
            start,
            start.saturating_add(size as u64),
            "the range that the CUDA provider reserved",
        );
        let suballocator = suballocator.inspect_err(|_| {
            let _ = release_addresses(&context, start, size);
        })?;
        let physical = Mutex::default();
        Ok(Self { context, peers, handle_types, granularity, start, size, suballocator, physical })
    }

    pub(crate) const fn page_size(&self) -> usize {
        self.granularity
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, PhysicalMemory>> {
        self.physical.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let too_large = Error::OutOfMemory { size: layout.size(), owner: "the CUDA device", native: 0 };
        let size = layout.size().checked_next_multiple_of(self.granularity).ok_or(too_large)?;
        let align = layout.align().max(self.granularity) as u64;
        let _current = self.context.enter()?;
        self.suballocator.allocate(size, align, |address| {
            let base = usize::try_from(address).ok().and_then(Address::new).ok_or(too_large)?;
            let properties = properties(self.context.device(), self.handle_types);
            let physical = PhysicalMemory::allocate(&self.context, size, &properties)?;
            let devices = core::iter::once(self.context.device()).chain(self.peers.iter().copied());
            if let Err(error) = physical.map(&self.context, address, size, devices, Access::ReadWrite) {
                let _ = physical.release(&self.context);
                return Err(error);
            }
            self.lock().insert(address, physical);
            address_map::add(MemoryOrigin::Allocated, base, size, &self.context);
            Ok(base)
        })
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        self.suballocator.free(region, |address| {
            let Some(physical) = self.lock().get(&address).copied() else { return Ok(()) };
            address_map::remove(MemoryOrigin::Allocated, region.base());
            // Unmapping works without a current context.
            let _current = self.context.enter().ok();
            let freed = unmap(&self.context, address, region.size()).map(|()| {
                // No longer mapped here: the memory is freed with its last importer. An error of
                // the release changes nothing.
                let _ = physical.release(&self.context);
            });
            match freed {
                Err(error) if !is_gone(&error) => {
                    address_map::add(MemoryOrigin::Allocated, region.base(), region.size(), &self.context);
                    Err(error)
                }
                _ => {
                    self.lock().remove(&address);
                    Ok(())
                }
            }
        })
    }

    /// Returns whether regions are exported as file descriptors.
    pub(crate) fn has_fds(&self) -> bool {
        self.handle_types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    }

    /// Returns the physical memory of a live region, for export.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the device cannot export it; [`Error::NotAllocated`].
    pub(crate) fn physical_of(&self, region: &Region) -> Result<PhysicalMemory> {
        let address = self.suballocator.offset_of(region)?;
        if self.handle_types == CU_MEM_HANDLE_TYPE_NONE {
            return Err(Error::NotSupported {
                what: "file descriptors of physical memory (use memory kind \"device\")",
                owner: "this CUDA device or system",
                native: 0,
            });
        }
        self.lock().get(&address).copied().ok_or(Error::NotAllocated { address: region.base() })
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.suballocator.offset_of(region).map(drop)
    }
}

impl Drop for VirtualRange {
    fn drop(&mut self) {
        // The range stays reserved while regions are live: the application may still use them.
        if self.context.driver().is_inherited() || self.suballocator.live() > 0 {
            return;
        }
        let _current = self.context.enter().ok();
        let _ = release_addresses(&self.context, self.start, self.size);
    }
}

/// Returns the properties of physical memory of a device that can be exported as `handle_types`.
pub(crate) fn properties(device: CUdevice, handle_types: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle_types,
        location: CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32HandleMetaData: core::ptr::null_mut(),
        allocFlags: CUmemAllocationFlags::default(),
    }
}

/// Physical memory; released explicitly by [`PhysicalMemory::release`], since that can fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhysicalMemory(CUmemGenericAllocationHandle);

impl PhysicalMemory {
    /// Allocates physical memory.
    pub(crate) fn allocate(context: &Context, size: usize, properties: &CUmemAllocationProp) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the pointers to the result and to the properties are valid.
        unsafe { context.driver().api().cuMemCreate(&raw mut handle, size, properties, 0) }
            .map_err(allocation_error(size))?;
        Ok(Self(handle))
    }

    /// Imports an fd that another process exported. The driver validates it with its kernel module.
    pub(crate) fn from_fd(context: &Context, fd: BorrowedFd<'_>) -> Result<Self> {
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX);
        let shareable = core::ptr::without_provenance_mut(number);
        Self::import(context, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    }

    /// Imports a fabric handle that a process on this machine or the same fabric exported.
    pub(crate) fn from_fabric(context: &Context, mut handle: CUmemFabricHandle) -> Result<Self> {
        Self::import(context, (&raw mut handle).cast(), CU_MEM_HANDLE_TYPE_FABRIC)
    }

    fn import(
        context: &Context,
        shareable: *mut c_void,
        handle_type: CUmemAllocationHandleType,
    ) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the pointer to the result is valid; `shareable` is an fd number or points to a
        // handle, as `handle_type` requires.
        unsafe {
            context.driver().api().cuMemImportFromShareableHandle(&raw mut handle, shareable, handle_type)
        }
        .map_err(driver_error)?;
        Ok(Self(handle))
    }

    /// Maps it at reserved addresses, with access for `devices`. Returns the granted access:
    /// devices without read-only mappings grant write access too.
    pub(crate) fn map(
        self,
        context: &Context,
        address: CUdeviceptr,
        size: usize,
        devices: impl Iterator<Item = CUdevice>,
        access: Access,
    ) -> Result<Access> {
        let api = context.driver().api();
        // SAFETY: the addresses are reserved by this process, and nothing is mapped there.
        unsafe { api.cuMemMap(address, size, 0, self.0, 0) }.map_err(driver_error)?;
        let grant = |flags| CUmemAccessDesc { location: CUmemLocation::default(), flags };
        let mut descriptions: Vec<_> = devices
            .map(|id| CUmemAccessDesc {
                location: CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id },
                ..grant(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            })
            .collect();
        let mut set = |flags| {
            descriptions.iter_mut().for_each(|description| description.flags = flags);
            // SAFETY: the array has the given length; the range was mapped above.
            unsafe { api.cuMemSetAccess(address, size, descriptions.as_ptr(), descriptions.len()) }
        };
        let granted = match access {
            // Not every device supports read-only access: it is advisory then.
            Access::ReadOnly if set(CU_MEM_ACCESS_FLAGS_PROT_READ).is_ok() => Ok(Access::ReadOnly),
            _ => set(CU_MEM_ACCESS_FLAGS_PROT_READWRITE).map(|()| Access::ReadWrite),
        };
        granted.map_err(driver_error).inspect_err(|_| {
            // SAFETY: mapped above; the address has not been returned.
            let _ = unsafe { api.cuMemUnmap(address, size) };
        })
    }

    /// Exports it as an fd.
    pub(crate) fn export_fd(self, context: &Context) -> Result<OwnedFd> {
        let mut number = -1_i32;
        let handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: this handle type is an `int`, for which there is a valid pointer.
        unsafe {
            context.driver().api().cuMemExportToShareableHandle(
                (&raw mut number).cast(),
                self.0,
                handle_type,
                0,
            )
        }
        .map_err(driver_error)?;
        // SAFETY: the driver opened the fd for the caller.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        close_on_exec(&fd);
        Ok(fd)
    }

    /// Exports it as a fabric handle, for this machine and others of the same fabric.
    pub(crate) fn export_fabric(self, context: &Context) -> Result<CUmemFabricHandle> {
        let mut handle = CUmemFabricHandle { data: [0; 64] };
        let handle_type = CU_MEM_HANDLE_TYPE_FABRIC;
        // SAFETY: the pointer leads to a handle of this type.
        unsafe {
            context.driver().api().cuMemExportToShareableHandle(
                (&raw mut handle).cast(),
                self.0,
                handle_type,
                0,
            )
        }
        .map_err(driver_error)?;
        Ok(handle)
    }

    /// Releases the handle. The memory lives while it is mapped in any process.
    pub(crate) fn release(self, context: &Context) -> Result<()> {
        // SAFETY: allocated or imported by this value, and released once.
        unsafe { context.driver().api().cuMemRelease(self.0) }.map_err(driver_error)
    }
}

/// Unmaps physical memory.
pub(crate) fn unmap(context: &Context, address: CUdeviceptr, size: usize) -> Result<()> {
    // SAFETY: mapped by `PhysicalMemory::map`. By the contracts of `free` and `release`, the memory
    // is unused.
    unsafe { context.driver().api().cuMemUnmap(address, size) }.map_err(driver_error)
}

/// Reserves addresses.
pub(crate) fn reserve_addresses(context: &Context, size: usize, alignment: usize) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: the pointer to the result is valid for writes.
    unsafe { context.driver().api().cuMemAddressReserve(&raw mut address, size, alignment, 0, 0) }
        .map_err(allocation_error(size))?;
    Ok(address)
}

/// Releases reserved addresses.
pub(crate) fn release_addresses(context: &Context, address: CUdeviceptr, size: usize) -> Result<()> {
    // SAFETY: reserved by `reserve_addresses`; nothing is mapped there.
    unsafe { context.driver().api().cuMemAddressFree(address, size) }.map_err(driver_error)
}

/// Sets the close-on-exec flag, which drivers leave unset.
pub(crate) fn close_on_exec(fd: &OwnedFd) {
    // Cannot fail: the fd is open.
    let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
}
