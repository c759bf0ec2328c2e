//! Allocations.

use core::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use level_zero_sys::*;
use umf_core::{Address, Layout};

use super::{Answer, address, pointer};
use crate::context::{Context, Relaxed};

/// What an allocation is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'fd> {
    pub kind: ze_memory_type_t,
    pub device: ze_device_handle_t,
    pub ordinal: u32,
    /// How to ask for more than the device's limit, if that is needed.
    pub relaxed: Option<Relaxed>,
    /// The forms in which it will be exported as an fd.
    pub exportable: ze_external_memory_type_flags_t,
    /// The fd of the memory, and its form, if it is there already.
    pub import: Option<(BorrowedFd<'fd>, ze_external_memory_type_flags_t)>,
}

/// What an allocation is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub kind: ze_memory_type_t,
    pub id: u64,
    pub page: u64,
}

/// Allocates. `None` if the driver answers with an address that cannot be one.
pub(crate) fn allocate(context: &Context, layout: Layout, wish: &Wish<'_>) -> Answer<Option<Address>> {
    let mut next: *const c_void = core::ptr::null();
    let ext = ze_relaxed_allocation_limits_ext_desc_t {
        flags: ZE_RELAXED_ALLOCATION_LIMITS_EXT_FLAG_MAX_SIZE,
        ..Default::default()
    };
    let exp = ze_relaxed_allocation_limits_exp_desc_t {
        flags: ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE,
        ..Default::default()
    };
    match wish.relaxed {
        Some(Relaxed::Extension) => next = (&raw const ext).cast(),
        Some(Relaxed::Experiment) => next = (&raw const exp).cast(),
        None => {}
    }
    let export =
        ze_external_memory_export_desc_t { pNext: next, flags: wish.exportable, ..Default::default() };
    if wish.exportable != 0 {
        next = (&raw const export).cast();
    }
    let (fd, form) = wish.import.map_or((-1, 0), |(fd, form)| (fd.as_raw_fd(), form));
    let import = ze_external_memory_import_fd_t { pNext: next, flags: form, fd, ..Default::default() };
    if wish.import.is_some() {
        next = (&raw const import).cast();
    }
    let device_desc = ze_device_mem_alloc_desc_t { pNext: next, ordinal: wish.ordinal, ..Default::default() };
    let plain_host = ze_host_mem_alloc_desc_t::default();
    let host_desc = ze_host_mem_alloc_desc_t { pNext: next, ..Default::default() };
    let (api, handle) = (context.api(), context.handle());
    let (size, align) = (layout.size(), layout.align());
    let mut made = core::ptr::null_mut();
    // SAFETY: see the module.
    unsafe {
        match wish.kind {
            ZE_MEMORY_TYPE_HOST => {
                api.zeMemAllocHost(handle, &raw const host_desc, size, align, &raw mut made)?;
            }
            ZE_MEMORY_TYPE_SHARED => {
                let (device, host) = (&raw const device_desc, &raw const plain_host);
                api.zeMemAllocShared(handle, device, host, size, align, wish.device, &raw mut made)?;
            }
            _ => {
                let desc = &raw const device_desc;
                api.zeMemAllocDevice(handle, desc, size, align, wish.device, &raw mut made)?;
            }
        }
    }
    let found = address(made);
    if found.is_none() && !made.is_null() {
        // SAFETY: allocated above, and nobody has seen it.
        unsafe { api.zeMemFree(handle, made) }?;
    }
    Ok(found)
}

/// Frees, by a policy if one is set.
pub(crate) fn free(
    context: &Context,
    base: Address,
    policy: Option<ze_driver_memory_free_policy_ext_flags_t>,
) -> Answer {
    let (api, handle) = (context.api(), context.handle());
    // SAFETY: see the module; that nobody uses the memory is the promise of who frees the region.
    unsafe {
        match policy {
            None => api.zeMemFree(handle, pointer(base)),
            Some(policy) => {
                let desc = ze_memory_free_ext_desc_t { freePolicy: policy, ..Default::default() };
                api.zeMemFreeExt(handle, &raw const desc, pointer(base))
            }
        }
    }
}

/// Has the driver say what lies at an address, there and in what is chained to it.
fn tell(context: &Context, base: Address, told: &mut ze_memory_allocation_properties_t) -> Answer<()> {
    let mut device = ze_device_handle_t::NULL;
    // SAFETY: see the module.
    unsafe { context.api().zeMemGetAllocProperties(context.handle(), pointer(base), told, &raw mut device) }
}

/// What lies at an address.
pub(crate) fn facts(context: &Context, base: Address) -> Answer<Facts> {
    let mut told = ze_memory_allocation_properties_t::default();
    tell(context, base, &mut told)?;
    Ok(Facts { kind: told.r#type, id: told.id, page: told.pageSize })
}

/// An fd of an allocation that was made exportable in this form; `None` if the driver answers with what is no fd.
pub(crate) fn export_fd(
    context: &Context,
    base: Address,
    form: ze_external_memory_type_flags_t,
) -> Answer<Option<OwnedFd>> {
    let mut export = ze_external_memory_export_fd_t { flags: form, fd: -1, ..Default::default() };
    let mut told =
        ze_memory_allocation_properties_t { pNext: (&raw mut export).cast(), ..Default::default() };
    tell(context, base, &mut told)?;
    // SAFETY: the specification gives the fd to whoever asked for it.
    Ok((export.fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(export.fd) }))
}

/// Where the allocation that holds an address begins, and its size in bytes.
pub(crate) fn extent(context: &Context, inside: Address) -> Answer<Option<(Address, usize)>> {
    let (mut base, mut size) = (core::ptr::null_mut(), 0);
    // SAFETY: see the module.
    unsafe {
        context.api().zeMemGetAddressRange(
            context.handle(),
            pointer(inside),
            &raw mut base,
            &raw mut size,
        )?;
    }
    Ok(address(base).map(|base| (base, size)))
}

/// Makes a range resident on a device, or no longer.
pub(crate) fn set_resident(
    context: &Context,
    device: ze_device_handle_t,
    (base, size): (Address, usize),
    is_resident: bool,
) -> Answer {
    let (api, handle) = (context.api(), context.handle());
    // SAFETY: see the module.
    unsafe {
        if is_resident {
            api.zeContextMakeMemoryResident(handle, device, pointer(base), size)
        } else {
            api.zeContextEvictMemory(handle, device, pointer(base), size)
        }
    }
}

/// The page size for reservations of so many bytes on a device.
pub(crate) fn query_page_size(context: &Context, device: ze_device_handle_t, size: usize) -> Answer<usize> {
    let mut page = 0;
    // SAFETY: see the module.
    unsafe { context.api().zeVirtualMemQueryPageSize(context.handle(), device, size, &raw mut page) }?;
    Ok(page)
}
