//! Contexts and their memory: allocating, freeing, properties and residency.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use level_zero_sys::*;
use soft_device::{Backing, Mapping, MemoryOrigin, MemoryRange, lock, read_argument, write_result};

use crate::state::{Context, Device, DriverState, ZeResult, entry, handle, number, write_optional};

/// Page size of device memory in bytes.
pub(crate) const DEVICE_PAGE: usize = 64 << 10;
/// Page size of reservations of at least this size, in bytes.
const LARGE_PAGE: usize = 2 << 20;
/// Page size of host memory in bytes.
const HOST_PAGE: usize = 4096;
/// The largest alignment in bytes.
const LARGEST_ALIGNMENT: usize = 1 << 30;

fn page_of(kind: ze_memory_type_t) -> usize {
    if kind == ZE_MEMORY_TYPE_HOST { HOST_PAGE } else { DEVICE_PAGE }
}

/// The description of an allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) kind: ze_memory_type_t,
    /// Opened from an IPC handle: it is closed, not freed.
    pub(crate) is_opened: bool,
    pub(crate) context: ze_context_handle_t,
    /// Null for host memory.
    pub(crate) device: ze_device_handle_t,
    /// The root device of `device`.
    pub(crate) root: ze_device_handle_t,
    /// The fd types in which it can be exported.
    pub(crate) exportable: ze_external_memory_type_flags_t,
    /// The root devices on which it is resident.
    residents: Mutex<Vec<ze_device_handle_t>>,
}

impl Allocation {
    pub(crate) fn new(
        is_opened: bool,
        kind: ze_memory_type_t,
        context: ze_context_handle_t,
        device: Option<&Device>,
    ) -> Self {
        Self {
            kind,
            is_opened,
            context,
            device: device.map_or(ze_device_handle_t::NULL, |device| device.handle),
            root: device.map_or(ze_device_handle_t::NULL, Device::root),
            exportable: 0,
            residents: Mutex::default(),
        }
    }

    pub(crate) fn set_resident(&self, device: &Device, is_resident: bool) {
        let mut residents = lock(&self.residents);
        residents.retain(|resident| *resident != device.root());
        if is_resident {
            residents.push(device.root());
        }
    }

    pub(crate) fn residents(&self) -> usize {
        lock(&self.residents).len()
    }

    /// Checks that a device can access the memory as a peer.
    pub(crate) fn check_peer(&self, state: &DriverState, device: &Device) -> ZeResult {
        if self.kind != ZE_MEMORY_TYPE_DEVICE || self.root == device.root() || state.core.settings.peers {
            return Ok(());
        }
        Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
    }

    /// Checks that a device can access the memory now.
    pub(crate) fn check_use(&self, state: &DriverState, device: &Device) -> ZeResult {
        self.check_peer(state, device)?;
        let is_peers = self.kind == ZE_MEMORY_TYPE_DEVICE && self.root != device.root();
        if is_peers && state.settings.strict_residency && !lock(&self.residents).contains(&device.root()) {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        Ok(())
    }
}

/// Maps addresses for an allocation: without access for device memory, else the pages themselves.
pub(crate) fn map_window(
    state: &DriverState,
    kind: ze_memory_type_t,
    size: usize,
    alignment: usize,
    file: BorrowedFd<'_>,
) -> ZeResult<Mapping> {
    if kind != ZE_MEMORY_TYPE_DEVICE {
        let window = Mapping::reserve(size, alignment)?;
        window.map_file(file)?;
        return Ok(window);
    }
    let Some((begin, end)) = state.settings.addresses else {
        return Ok(Mapping::reserve(size, alignment)?);
    };
    // The lowest free addresses, so that freed addresses are reused at once.
    let mut address = begin.next_multiple_of(alignment);
    while address.checked_add(size).is_some_and(|last| last <= end) {
        if let Ok(window) = Mapping::reserve_at(address, size) {
            return Ok(window);
        }
        let taken = state.core.addresses.find(address);
        let next = taken.map_or(address + 1, |range| range.start + range.mapped_size());
        address = next.max(address + 1).next_multiple_of(alignment);
    }
    Err(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.into())
}

/// The options of an allocation, from the structures chained to its descriptor.
struct AllocationOptions {
    is_relaxed: bool,
    exportable: ze_external_memory_type_flags_t,
    import: Option<(ze_external_memory_type_flags_t, i32)>,
}

impl AllocationOptions {
    /// # Safety
    /// `next` is null or a valid chain.
    unsafe fn read(next: *const c_void) -> Self {
        // SAFETY: the caller upholds the contract.
        unsafe {
            let relaxed = read_argument(chain::find::<ze_relaxed_allocation_limits_ext_desc_t>(next))
                .is_ok_and(|desc| desc.flags & ZE_RELAXED_ALLOCATION_LIMITS_EXT_FLAG_MAX_SIZE != 0);
            let relaxed_before = read_argument(chain::find::<ze_relaxed_allocation_limits_exp_desc_t>(next))
                .is_ok_and(|desc| desc.flags & ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE != 0);
            let export = read_argument(chain::find::<ze_external_memory_export_desc_t>(next));
            let import = read_argument(chain::find::<ze_external_memory_import_fd_t>(next));
            Self {
                is_relaxed: relaxed || relaxed_before,
                exportable: export.map_or(0, |desc| desc.flags),
                import: import.ok().map(|desc| (desc.flags, desc.fd)),
            }
        }
    }
}

fn allocate(
    state: &DriverState,
    context: ze_context_handle_t,
    kind: ze_memory_type_t,
    device: Option<&Device>,
    size: usize,
    alignment: usize,
    options: &AllocationOptions,
) -> ZeResult<usize> {
    if size == 0 || (size as u64 > state.settings.largest && !options.is_relaxed) {
        return Err(ZE_RESULT_ERROR_UNSUPPORTED_SIZE.into());
    }
    if (alignment != 0 && !alignment.is_power_of_two()) || alignment > LARGEST_ALIGNMENT {
        return Err(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT.into());
    }
    if options.exportable & !ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD != 0 {
        return Err(ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into());
    }
    let page = page_of(kind);
    let alignment = alignment.max(page);
    let rounded = size.checked_next_multiple_of(page).ok_or(ZE_RESULT_ERROR_UNSUPPORTED_SIZE)?;
    let (backing, window) = match options.import {
        Some((flags, fd)) => import(state, kind, rounded, alignment, flags, fd)?,
        None => {
            let charges = state.core.charges(device.map_or(&[], |device| &device.memory), rounded)?;
            let origin = match kind {
                ZE_MEMORY_TYPE_DEVICE => MemoryOrigin::Device(device.map_or(0, |device| device.index)),
                _ => MemoryOrigin::Host,
            };
            let backing = Backing::new(rounded, origin, charges)?;
            let file = backing.file().ok_or(ZE_RESULT_ERROR_UNKNOWN)?;
            let window = map_window(state, kind, rounded, alignment, file)?;
            (backing, window)
        }
    };
    let mut allocation = Allocation::new(false, kind, context, device);
    allocation.exportable = options.exportable;
    Ok(state.core.addresses.insert(size, backing, window, allocation))
}

/// Imports memory from an fd. The application keeps the fd.
fn import(
    state: &DriverState,
    kind: ze_memory_type_t,
    size: usize,
    alignment: usize,
    flags: ze_external_memory_type_flags_t,
    number: i32,
) -> ZeResult<(Backing, Mapping)> {
    let wants_dma_buf = match flags {
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD => false,
        ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF => true,
        _ => return Err(ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into()),
    };
    let file = Backing::duplicate_fd(number)?;
    let (backing, origin) = Backing::from_fd(file.as_fd())?;
    if wants_dma_buf != (origin == MemoryOrigin::DmaBuf) || backing.size() < size {
        return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    let window = map_window(state, kind, size, alignment, file.as_fd())?;
    Ok((backing, window))
}

/// # Safety
/// `pointer` is null or valid for a write; `next` is null or a valid chain.
unsafe fn allocate_at(
    state: &DriverState,
    context: ze_context_handle_t,
    kind: ze_memory_type_t,
    device: Option<&Device>,
    (size, alignment): (usize, usize),
    next: *const c_void,
    pointer: *mut *mut c_void,
) -> ZeResult {
    // SAFETY: the caller upholds the contract. The pointer is written before anything is allocated,
    // so that a bad pointer leaks nothing.
    unsafe {
        write_result(pointer, std::ptr::null_mut())?;
        let options = AllocationOptions::read(next);
        let start = allocate(state, context, kind, device, size, alignment, &options)?;
        Ok(write_result(pointer, handle(start))?)
    }
}

pub(crate) unsafe extern "C" fn alloc_shared(
    context: ze_context_handle_t,
    device_desc: *const ze_device_mem_alloc_desc_t,
    host_desc: *const ze_host_mem_alloc_desc_t,
    size: usize,
    alignment: usize,
    device: ze_device_handle_t,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    entry("zeMemAllocShared", |state| {
        state.context(context)?;
        let device = if device.is_null() { None } else { Some(state.device(device)?) };
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let desc = read_argument(device_desc)?;
            read_argument(host_desc)?;
            let request = (size, alignment);
            allocate_at(
                state,
                context,
                ZE_MEMORY_TYPE_SHARED,
                device.as_deref(),
                request,
                desc.pNext,
                pointer,
            )
        }
    })
}

pub(crate) unsafe extern "C" fn alloc_device(
    context: ze_context_handle_t,
    desc: *const ze_device_mem_alloc_desc_t,
    size: usize,
    alignment: usize,
    device: ze_device_handle_t,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    entry("zeMemAllocDevice", |state| {
        state.context(context)?;
        let device = state.device(device)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let desc = read_argument(desc)?;
            if desc.ordinal != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
            }
            let request = (size, alignment);
            allocate_at(state, context, ZE_MEMORY_TYPE_DEVICE, Some(&device), request, desc.pNext, pointer)
        }
    })
}

pub(crate) unsafe extern "C" fn alloc_host(
    context: ze_context_handle_t,
    desc: *const ze_host_mem_alloc_desc_t,
    size: usize,
    alignment: usize,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    entry("zeMemAllocHost", |state| {
        state.context(context)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let desc = read_argument(desc)?;
            allocate_at(state, context, ZE_MEMORY_TYPE_HOST, None, (size, alignment), desc.pNext, pointer)
        }
    })
}

/// Removes an allocation. Submitted commands keep its pages until they have executed.
fn remove(
    state: &DriverState,
    context: ze_context_handle_t,
    pointer: usize,
) -> ZeResult<Arc<MemoryRange<Allocation>>> {
    if pointer == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    let matches = |range: &MemoryRange<Allocation>| range.owner.context == context && !range.owner.is_opened;
    let range = state.core.addresses.remove(pointer, matches).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
    state.exports.remove_all_of(range.id);
    Ok(range)
}

pub(crate) unsafe extern "C" fn free(context: ze_context_handle_t, pointer: *mut c_void) -> ze_result_t {
    entry("zeMemFree", |state| {
        // Memory of a lost device can be freed too.
        state.contexts.get(context.0.addr())?;
        remove(state, context, pointer.addr()).map(drop)
    })
}

pub(crate) unsafe extern "C" fn free_ext(
    context: ze_context_handle_t,
    desc: *const ze_memory_free_ext_desc_t,
    pointer: *mut c_void,
) -> ze_result_t {
    entry("zeMemFreeExt", |state| {
        state.contexts.get(context.0.addr())?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        let policy = unsafe { read_argument(desc) }?.freePolicy;
        let known = ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE
            | ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE;
        if policy & !known != 0 {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        let range = remove(state, context, pointer.addr())?;
        if policy & ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE != 0 {
            // All other references are held by submitted commands.
            while Arc::strong_count(&range.backing) > 1 && state.core.health.check().is_ok() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn get_alloc_properties(
    context: ze_context_handle_t,
    pointer: *const c_void,
    properties: *mut ze_memory_allocation_properties_t,
    device: *mut ze_device_handle_t,
) -> ze_result_t {
    entry("zeMemGetAllocProperties", |state| {
        state.context(context)?;
        if pointer.is_null() {
            return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
        }
        let found = state.core.addresses.find(pointer.addr()).filter(|range| range.owner.context == context);
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let mut filled = read_argument(properties)?;
            let Some(range) = found else {
                (filled.r#type, filled.id, filled.pageSize) = (ZE_MEMORY_TYPE_UNKNOWN, 0, 0);
                write_optional(device, ze_device_handle_t::NULL);
                return Ok(write_result(properties, filled)?);
            };
            let owner = &range.owner;
            (filled.r#type, filled.id, filled.pageSize) = (owner.kind, range.id, page_of(owner.kind) as u64);
            let wanted = chain::find_mut::<ze_external_memory_export_fd_t>(filled.pNext);
            if let Ok(mut export) = read_argument(wanted) {
                if export.flags & !ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD != 0 {
                    return Err(ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into());
                }
                if owner.exportable & export.flags == 0 {
                    return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
                }
                // The application owns the fd from here on.
                export.fd = range.backing.export()?.into_raw_fd();
                write_result(wanted, export)?;
            }
            write_optional(device, owner.device);
            Ok(write_result(properties, filled)?)
        }
    })
}

pub(crate) unsafe extern "C" fn get_address_range(
    context: ze_context_handle_t,
    pointer: *const c_void,
    base: *mut *mut c_void,
    size: *mut usize,
) -> ze_result_t {
    entry("zeMemGetAddressRange", |state| {
        state.context(context)?;
        if pointer.is_null() {
            return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
        }
        let found = state.core.addresses.find(pointer.addr()).filter(|range| range.owner.context == context);
        let range = found.ok_or(ZE_RESULT_ERROR_ADDRESS_NOT_FOUND)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            write_optional(base, handle(range.start));
            write_optional(size, range.size);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_page_size(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    size: usize,
    page: *mut usize,
) -> ze_result_t {
    entry("zeVirtualMemQueryPageSize", |state| {
        state.context(context)?;
        state.device(device)?;
        if size == 0 {
            return Err(ZE_RESULT_ERROR_UNSUPPORTED_SIZE.into());
        }
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(page, if size >= LARGE_PAGE { LARGE_PAGE } else { DEVICE_PAGE }) }?)
    })
}

pub(crate) unsafe extern "C" fn create_context(
    driver: ze_driver_handle_t,
    desc: *const ze_context_desc_t,
    context: *mut ze_context_handle_t,
) -> ze_result_t {
    entry("zeContextCreate", |state| {
        state.driver(driver)?;
        state.core.health.check()?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            read_argument(desc)?;
            // Written before the context is created, so that a bad pointer leaks nothing.
            write_result(context, ze_context_handle_t::NULL)?;
            Ok(write_result(context, ze_context_handle_t(handle(state.contexts.insert(Context))))?)
        }
    })
}

/// Destroys a context and its memory.
pub(crate) unsafe extern "C" fn destroy_context(context: ze_context_handle_t) -> ze_result_t {
    entry("zeContextDestroy", |state| {
        state.contexts.remove(number(context.0))?;
        for range in state.core.addresses.remove_all(|range| range.owner.context == context) {
            state.exports.remove_all_of(range.id);
        }
        if state.contexts.len() == 0 {
            // No exported handle is left. The server is stopped without the lock.
            let server = lock(&state.server).take();
            drop(server);
        }
        Ok(())
    })
}

/// Makes an allocation resident on a device, or evicts it.
fn residency(
    state: &DriverState,
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    pointer: usize,
    size: usize,
    is_resident: bool,
) -> ZeResult {
    state.context(context)?;
    let device = state.device(device)?;
    if pointer == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    if size == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_SIZE.into());
    }
    let range = state.core.addresses.find(pointer).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
    if range.owner.context != context || size > range.size - (pointer - range.start) {
        return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    range.owner.set_resident(&device, is_resident);
    Ok(())
}

pub(crate) unsafe extern "C" fn make_memory_resident(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    pointer: *mut c_void,
    size: usize,
) -> ze_result_t {
    entry("zeContextMakeMemoryResident", |state| {
        check_peer_access(state, device, pointer.addr())?;
        residency(state, context, device, pointer.addr(), size, true)
    })
}

pub(crate) unsafe extern "C" fn evict_memory(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    pointer: *mut c_void,
    size: usize,
) -> ze_result_t {
    entry("zeContextEvictMemory", |state| residency(state, context, device, pointer.addr(), size, false))
}

/// Checks that a device can access memory at an address as a peer, which residency requires.
fn check_peer_access(state: &DriverState, device: ze_device_handle_t, pointer: usize) -> ZeResult {
    let device = state.device(device)?;
    match state.core.addresses.find(pointer) {
        Some(range) => range.owner.check_peer(state, &device),
        None => Ok(()),
    }
}
