//! Physical memory of a device, mapped at reserved addresses.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cuda_sys::*;
use umf_core::{Access, Result};

use crate::context::Context;
use crate::driver::{error, memory_error};

/// What physical memory of a device is asked for with.
pub(crate) fn properties(device: CUdevice, forms: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: forms,
        location: CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32HandleMetaData: core::ptr::null_mut(),
        allocFlags: CUmemAllocationFlags::default(),
    }
}

/// Physical memory; given back by [`Physical::release`], since that may fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Physical(CUmemGenericAllocationHandle);

impl Physical {
    pub(crate) fn make(context: &Context, size: usize, properties: &CUmemAllocationProp) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: a place for the answer, and what is asked for.
        unsafe { context.driver().api().cuMemCreate(&raw mut handle, size, properties, 0) }
            .map_err(memory_error(size))?;
        Ok(Self(handle))
    }

    /// What another process gave: the driver looks whether the fd is one of its own, by asking the kernel's module alone.
    pub(crate) fn of_fd(context: &Context, fd: BorrowedFd<'_>) -> Result<Self> {
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX);
        let shareable = core::ptr::without_provenance_mut(number);
        Self::import(context, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    }

    /// What another process gave, of this machine or another of the fabric.
    pub(crate) fn of_fabric(context: &Context, mut handle: CUmemFabricHandle) -> Result<Self> {
        Self::import(context, (&raw mut handle).cast(), CU_MEM_HANDLE_TYPE_FABRIC)
    }

    fn import(context: &Context, shareable: *mut c_void, form: CUmemAllocationHandleType) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: a place for the answer; an fd as a number, or the place of a handle of that form.
        unsafe { context.driver().api().cuMemImportFromShareableHandle(&raw mut handle, shareable, form) }
            .map_err(error)?;
        Ok(Self(handle))
    }

    /// Maps it at addresses that are reserved, for these devices.
    pub(crate) fn map(
        self,
        context: &Context,
        address: CUdeviceptr,
        size: usize,
        devices: impl Iterator<Item = CUdevice>,
        access: Access,
    ) -> Result<Access> {
        let api = context.driver().api();
        // SAFETY: addresses of ours, where nothing is.
        unsafe { api.cuMemMap(address, size, 0, self.0, 0) }.map_err(error)?;
        let grant = |flags| CUmemAccessDesc { location: CUmemLocation::default(), flags };
        let mut descriptions: Vec<_> = devices
            .map(|id| CUmemAccessDesc {
                location: CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id },
                ..grant(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            })
            .collect();
        let mut set = |flags| {
            descriptions.iter_mut().for_each(|description| description.flags = flags);
            // SAFETY: as many descriptions as are said, for what was just mapped.
            unsafe { api.cuMemSetAccess(address, size, descriptions.as_ptr(), descriptions.len()) }
        };
        let granted = match access {
            // Not every device can do that: reading alone is a courtesy then.
            Access::ReadOnly if set(CU_MEM_ACCESS_FLAGS_PROT_READ).is_ok() => Ok(Access::ReadOnly),
            _ => set(CU_MEM_ACCESS_FLAGS_PROT_READWRITE).map(|()| Access::ReadWrite),
        };
        granted.map_err(error).inspect_err(|_| {
            // SAFETY: mapped above, and nobody has seen it.
            let _ = unsafe { api.cuMemUnmap(address, size) };
        })
    }

    /// An fd for another process.
    pub(crate) fn export_fd(self, context: &Context) -> Result<OwnedFd> {
        let mut number = -1_i32;
        let form = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: a place for a number, which is what this form is.
        unsafe {
            context.driver().api().cuMemExportToShareableHandle((&raw mut number).cast(), self.0, form, 0)
        }
        .map_err(error)?;
        // SAFETY: the driver opened it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        close_on_exec(&fd);
        Ok(fd)
    }

    /// Bytes for another process, of this machine or another of the fabric.
    pub(crate) fn export_fabric(self, context: &Context) -> Result<CUmemFabricHandle> {
        let mut handle = CUmemFabricHandle { data: [0; 64] };
        let form = CU_MEM_HANDLE_TYPE_FABRIC;
        // SAFETY: a place for a handle of that form.
        unsafe {
            context.driver().api().cuMemExportToShareableHandle((&raw mut handle).cast(), self.0, form, 0)
        }
        .map_err(error)?;
        Ok(handle)
    }

    /// Lets go of it. Whoever has it mapped, here or elsewhere, keeps it.
    pub(crate) fn release(self, context: &Context) -> Result<()> {
        // SAFETY: made or opened here, and let go of once.
        unsafe { context.driver().api().cuMemRelease(self.0) }.map_err(error)
    }
}

/// Takes a mapping away.
pub(crate) fn unmap(context: &Context, address: CUdeviceptr, size: usize) -> Result<()> {
    // SAFETY: mapped by `Physical::map`, and nobody uses it any more by the contracts of `free` and `release`.
    unsafe { context.driver().api().cuMemUnmap(address, size) }.map_err(error)
}

/// Takes addresses where nothing is.
pub(crate) fn reserve(context: &Context, size: usize, alignment: usize) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: a place for the answer.
    unsafe { context.driver().api().cuMemAddressReserve(&raw mut address, size, alignment, 0, 0) }
        .map_err(memory_error(size))?;
    Ok(address)
}

/// Gives them back.
pub(crate) fn give_back(context: &Context, address: CUdeviceptr, size: usize) -> Result<()> {
    // SAFETY: reserved by `reserve`, and nothing is mapped there any more.
    unsafe { context.driver().api().cuMemAddressFree(address, size) }.map_err(error)
}

/// Keeps a file from exec'ed children, which drivers leave it open for.
pub(crate) fn close_on_exec(fd: &OwnedFd) {
    // A file of ours: there is nothing that could fail.
    let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
}
