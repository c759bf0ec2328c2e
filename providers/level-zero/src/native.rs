//! Calls of the driver, one function per call; and the conversion of failed calls to errors of umf.
//! Raw pointers and `ze_*` structures of a call stay in this file.
//!
//! # Soundness
//! The same invariants make every call sound:
//! - The [`Api`] comes from a Level Zero loader or driver, so that its functions have the
//!   specification's prototypes.
//! - Every structure carries its type and outlives the call.
//! - Every handle came from this driver, or from the application, which vouched for it
//!   ([`crate::LevelZeroProvider::from_context`]). No handle is used after it was destroyed.
//! - The driver checks addresses: an address outside of its allocations is an error value.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use level_zero_sys::*;
use umf_core::{Address, Error, Layout};

use crate::context::{Context, RelaxedLimits};

pub(crate) type DriverResult<T = ()> = Result<T, Failure>;

/// Converts an address to the driver's type.
fn pointer(address: Address) -> *mut c_void {
    address.as_ptr().map_or(core::ptr::null_mut(), <*mut u8>::cast)
}

/// Converts an address from the driver's type. `None` if it is null or outside of the address space
/// of processes.
fn address(pointer: *mut c_void) -> Option<Address> {
    Address::new(pointer.expose_provenance()).filter(|_| !pointer.is_null())
}

// Drivers and devices

/// Initializes the drivers and lists them.
pub(crate) fn drivers(api: &Api) -> DriverResult<Vec<ze_driver_handle_t>> {
    // SAFETY: see the module's invariants.
    unsafe { api.zeInit(0) }?;
    // SAFETY: as above; `enumerate` passes a list of `count` elements.
    enumerate(ze_driver_handle_t::NULL, |count, list| unsafe { api.zeDriverGet(count, list) })
}

/// Lists the root devices of a driver.
pub(crate) fn devices(api: &Api, driver: ze_driver_handle_t) -> DriverResult<Vec<ze_device_handle_t>> {
    // SAFETY: see the module's invariants.
    enumerate(ze_device_handle_t::NULL, |count, list| unsafe { api.zeDeviceGet(driver, count, list) })
}

/// Lists the sub-devices of a device.
pub(crate) fn sub_devices(api: &Api, device: ze_device_handle_t) -> DriverResult<Vec<ze_device_handle_t>> {
    // SAFETY: see the module's invariants.
    enumerate(ze_device_handle_t::NULL, |count, list| unsafe {
        api.zeDeviceGetSubDevices(device, count, list)
    })
}

/// Creates a context.
pub(crate) fn create_context(api: &Api, driver: ze_driver_handle_t) -> DriverResult<ze_context_handle_t> {
    let desc = ze_context_desc_t::default();
    let mut context = ze_context_handle_t::NULL;
    // SAFETY: see the module's invariants.
    unsafe { api.zeContextCreate(driver, &raw const desc, &raw mut context) }?;
    Ok(context)
}

/// Destroys a context. It has no memory, lists or handles left.
pub(crate) fn destroy_context(api: &Api, context: ze_context_handle_t) -> DriverResult {
    // SAFETY: see the module's invariants.
    unsafe { api.zeContextDestroy(context) }
}

/// Returns the version of the specification that a driver implements.
pub(crate) fn version(api: &Api, driver: ze_driver_handle_t) -> DriverResult<ze_api_version_t> {
    let mut version = ze_api_version_t(0);
    // SAFETY: see the module's invariants.
    unsafe { api.zeDriverGetApiVersion(driver, &raw mut version) }?;
    Ok(version)
}

/// Lists the names of a driver's extensions.
pub(crate) fn extensions(api: &Api, driver: ze_driver_handle_t) -> DriverResult<Vec<String>> {
    // SAFETY: see the module's invariants.
    let list = enumerate(ze_driver_extension_properties_t::default(), |count, list| unsafe {
        api.zeDriverGetExtensionProperties(driver, count, list)
    })?;
    Ok(list.iter().map(|extension| text(&extension.name)).collect())
}

/// Returns the policies of `zeMemFreeExt` that a driver supports.
pub(crate) fn free_policies(
    api: &Api,
    driver: ze_driver_handle_t,
) -> DriverResult<ze_driver_memory_free_policy_ext_flags_t> {
    let mut policies = ze_driver_memory_free_ext_properties_t::default();
    let mut properties = ze_driver_properties_t { pNext: (&raw mut policies).cast(), ..Default::default() };
    // SAFETY: see the module's invariants.
    unsafe { api.zeDriverGetProperties(driver, &raw mut properties) }?;
    Ok(policies.freePolicies)
}

/// Returns the properties of a device.
pub(crate) fn properties(api: &Api, device: ze_device_handle_t) -> DriverResult<ze_device_properties_t> {
    let mut properties = ze_device_properties_t::default();
    // SAFETY: see the module's invariants.
    unsafe { api.zeDeviceGetProperties(device, &raw mut properties) }?;
    Ok(properties)
}

/// Lists the command queue groups of a device.
pub(crate) fn queue_groups(
    api: &Api,
    device: ze_device_handle_t,
) -> DriverResult<Vec<ze_command_queue_group_properties_t>> {
    // SAFETY: see the module's invariants.
    enumerate(ze_command_queue_group_properties_t::default(), |count, list| unsafe {
        api.zeDeviceGetCommandQueueGroupProperties(device, count, list)
    })
}

/// Lists the memories of a device.
pub(crate) fn memories(
    api: &Api,
    device: ze_device_handle_t,
) -> DriverResult<Vec<ze_device_memory_properties_t>> {
    // SAFETY: see the module's invariants.
    enumerate(ze_device_memory_properties_t::default(), |count, list| unsafe {
        api.zeDeviceGetMemoryProperties(device, count, list)
    })
}

/// Returns the size of a device's cache line in bytes, `None` if the driver does not report it.
pub(crate) fn cache_line(api: &Api, device: ze_device_handle_t) -> DriverResult<Option<usize>> {
    let mut line = ze_device_cache_line_size_ext_t::default();
    let mut properties = ze_device_cache_properties_t { pNext: (&raw mut line).cast(), ..Default::default() };
    let mut count = 1;
    // SAFETY: see the module's invariants.
    unsafe { api.zeDeviceGetCacheProperties(device, &raw mut count, &raw mut properties) }?;
    Ok((line.cacheLineSize > 0).then_some(line.cacheLineSize))
}

/// Returns the fd formats that a device imports and exports.
pub(crate) fn external_memory_properties(
    api: &Api,
    device: ze_device_handle_t,
) -> DriverResult<ze_device_external_memory_properties_t> {
    let mut properties = ze_device_external_memory_properties_t::default();
    // SAFETY: see the module's invariants.
    unsafe { api.zeDeviceGetExternalMemoryProperties(device, &raw mut properties) }?;
    Ok(properties)
}

/// Calls an enumerating function twice: first for the count, then for the elements.
fn enumerate<T: Copy>(empty: T, get: impl Fn(*mut u32, *mut T) -> DriverResult) -> DriverResult<Vec<T>> {
    let mut count = 0;
    get(&raw mut count, core::ptr::null_mut())?;
    let mut list = vec![empty; count as usize];
    if count > 0 {
        get(&raw mut count, list.as_mut_ptr())?;
    }
    list.truncate(count as usize);
    Ok(list)
}

/// Converts a character array to text. The terminating zero may be missing.
pub(crate) fn text(characters: &[u8]) -> String {
    let bytes = CStr::from_bytes_until_nul(characters).map_or(characters, CStr::to_bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

// Allocations

/// The parameters of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationDesc<'fd> {
    pub kind: ze_memory_type_t,
    pub device: ze_device_handle_t,
    pub ordinal: u32,
    /// The extension to use if the size exceeds the device's limit.
    pub relaxed: Option<RelaxedLimits>,
    /// The fd formats in which the memory can be exported; 0 for none.
    pub exportable: ze_external_memory_type_flags_t,
    /// The fd to import instead of allocating new memory, and its format.
    pub import: Option<(BorrowedFd<'fd>, ze_external_memory_type_flags_t)>,
}

/// The driver's description of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationInfo {
    pub kind: ze_memory_type_t,
    /// Unique in the process, for reused addresses too.
    pub id: u64,
    /// Page size in bytes.
    pub page: u64,
}

/// Allocates or imports memory. `None` if the driver returned an invalid address.
pub(crate) fn allocate(
    context: &Context,
    layout: Layout,
    desc: &AllocationDesc<'_>,
) -> DriverResult<Option<Address>> {
    let mut next: *const c_void = core::ptr::null();
    let ext = ze_relaxed_allocation_limits_ext_desc_t {
        flags: ZE_RELAXED_ALLOCATION_LIMITS_EXT_FLAG_MAX_SIZE,
        ..Default::default()
    };
    let exp = ze_relaxed_allocation_limits_exp_desc_t {
        flags: ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE,
        ..Default::default()
    };
    match desc.relaxed {
        Some(RelaxedLimits::Extension) => next = (&raw const ext).cast(),
        Some(RelaxedLimits::Experimental) => next = (&raw const exp).cast(),
        None => {}
    }
    let export =
        ze_external_memory_export_desc_t { pNext: next, flags: desc.exportable, ..Default::default() };
    if desc.exportable != 0 {
        next = (&raw const export).cast();
    }
    let (fd, form) = desc.import.map_or((-1, 0), |(fd, form)| (fd.as_raw_fd(), form));
    let import = ze_external_memory_import_fd_t { pNext: next, flags: form, fd, ..Default::default() };
    if desc.import.is_some() {
        next = (&raw const import).cast();
    }
    let device_desc = ze_device_mem_alloc_desc_t { pNext: next, ordinal: desc.ordinal, ..Default::default() };
    let plain_host = ze_host_mem_alloc_desc_t::default();
    let host_desc = ze_host_mem_alloc_desc_t { pNext: next, ..Default::default() };
    let (api, handle) = (context.api(), context.handle());
    let (size, align) = (layout.size(), layout.align());
    let mut made = core::ptr::null_mut();
    // SAFETY: see the module's invariants.
    unsafe {
        match desc.kind {
            ZE_MEMORY_TYPE_HOST => {
                api.zeMemAllocHost(handle, &raw const host_desc, size, align, &raw mut made)?;
            }
            ZE_MEMORY_TYPE_SHARED => {
                let (device, host) = (&raw const device_desc, &raw const plain_host);
                api.zeMemAllocShared(handle, device, host, size, align, desc.device, &raw mut made)?;
            }
            _ => {
                let device = &raw const device_desc;
                api.zeMemAllocDevice(handle, device, size, align, desc.device, &raw mut made)?;
            }
        }
    }
    let found = address(made);
    if found.is_none() && !made.is_null() {
        // SAFETY: allocated above; the address has not left this function.
        unsafe { api.zeMemFree(handle, made) }?;
    }
    Ok(found)
}

/// Frees an allocation, with `zeMemFreeExt` if there is a policy.
pub(crate) fn free(
    context: &Context,
    base: Address,
    policy: Option<ze_driver_memory_free_policy_ext_flags_t>,
) -> DriverResult {
    let (api, handle) = (context.api(), context.handle());
    // SAFETY: see the module's invariants. By the contract of `Provider::free`, the memory is
    // unused.
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

/// Queries the allocation at an address, and fills the structures chained to `properties`.
fn query_properties(
    context: &Context,
    base: Address,
    properties: &mut ze_memory_allocation_properties_t,
) -> DriverResult {
    let mut device = ze_device_handle_t::NULL;
    // SAFETY: see the module's invariants.
    unsafe {
        context.api().zeMemGetAllocProperties(context.handle(), pointer(base), properties, &raw mut device)
    }
}

/// Returns the driver's description of the allocation at an address.
pub(crate) fn allocation_info(context: &Context, base: Address) -> DriverResult<AllocationInfo> {
    let mut properties = ze_memory_allocation_properties_t::default();
    query_properties(context, base, &mut properties)?;
    Ok(AllocationInfo { kind: properties.r#type, id: properties.id, page: properties.pageSize })
}

/// Exports an allocation as an fd. It was allocated as exportable in this format. `None` if the
/// driver returned no fd.
pub(crate) fn export_fd(
    context: &Context,
    base: Address,
    form: ze_external_memory_type_flags_t,
) -> DriverResult<Option<OwnedFd>> {
    let mut export = ze_external_memory_export_fd_t { flags: form, fd: -1, ..Default::default() };
    let mut properties =
        ze_memory_allocation_properties_t { pNext: (&raw mut export).cast(), ..Default::default() };
    query_properties(context, base, &mut properties)?;
    // SAFETY: by the specification, the caller owns the exported fd.
    Ok((export.fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(export.fd) }))
}

/// Returns the base and the size in bytes of the allocation that contains an address.
pub(crate) fn address_range(context: &Context, inside: Address) -> DriverResult<Option<(Address, usize)>> {
    let (mut base, mut size) = (core::ptr::null_mut(), 0);
    // SAFETY: see the module's invariants.
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

/// Makes a range resident on a device, or evicts it.
pub(crate) fn set_resident(
    context: &Context,
    device: ze_device_handle_t,
    (base, size): (Address, usize),
    is_resident: bool,
) -> DriverResult {
    let (api, handle) = (context.api(), context.handle());
    // SAFETY: see the module's invariants.
    unsafe {
        if is_resident {
            api.zeContextMakeMemoryResident(handle, device, pointer(base), size)
        } else {
            api.zeContextEvictMemory(handle, device, pointer(base), size)
        }
    }
}

/// Returns the page size of a device for virtual reservations of `size` bytes.
pub(crate) fn query_page_size(
    context: &Context,
    device: ze_device_handle_t,
    size: usize,
) -> DriverResult<usize> {
    let mut page = 0;
    // SAFETY: see the module's invariants.
    unsafe { context.api().zeVirtualMemQueryPageSize(context.handle(), device, size, &raw mut page) }?;
    Ok(page)
}

// IPC handles

/// The content of an IPC handle.
pub(crate) type IpcHandleBytes = [u8; ZE_MAX_IPC_HANDLE_SIZE];

/// Returns the IPC handle of an allocation.
pub(crate) fn get_ipc_handle(context: &Context, base: Address) -> DriverResult<IpcHandleBytes> {
    let mut handle = ze_ipc_mem_handle_t::default();
    // SAFETY: see the module's invariants.
    unsafe { context.api().zeMemGetIpcHandle(context.handle(), pointer(base), &raw mut handle) }?;
    Ok(handle.data)
}

/// Releases an IPC handle of an allocation of this process.
pub(crate) fn put_ipc_handle(context: &Context, handle: IpcHandleBytes) -> DriverResult {
    // SAFETY: see the module's invariants.
    unsafe { context.api().zeMemPutIpcHandle(context.handle(), ze_ipc_mem_handle_t { data: handle }) }
}

/// Returns the number of the fd in a handle. The handle keeps the fd.
pub(crate) fn fd_of_ipc_handle(context: &Context, handle: IpcHandleBytes) -> DriverResult<Option<i32>> {
    let mut fd = 0;
    // SAFETY: see the module's invariants.
    unsafe {
        context.api().zeMemGetFileDescriptorFromIpcHandleExp(
            context.handle(),
            ze_ipc_mem_handle_t { data: handle },
            &raw mut fd,
        )?;
    }
    Ok(i32::try_from(fd).ok())
}

/// Returns an IPC handle for the memory of an fd of this process.
pub(crate) fn ipc_handle_from_fd(context: &Context, fd: i32) -> DriverResult<IpcHandleBytes> {
    let mut handle = ze_ipc_mem_handle_t::default();
    let number = u64::from(fd.cast_unsigned());
    // SAFETY: see the module's invariants.
    unsafe {
        context.api().zeMemGetIpcHandleFromFileDescriptorExp(context.handle(), number, &raw mut handle)?;
    }
    Ok(handle.data)
}

/// Opens an IPC handle for a device. `None` if the driver returned an invalid address.
pub(crate) fn open_ipc_handle(
    context: &Context,
    device: ze_device_handle_t,
    handle: IpcHandleBytes,
) -> DriverResult<Option<Address>> {
    let mut found = core::ptr::null_mut();
    // SAFETY: see the module's invariants. The driver rejects bytes that are not a handle.
    unsafe {
        context.api().zeMemOpenIpcHandle(
            context.handle(),
            device,
            ze_ipc_mem_handle_t { data: handle },
            0,
            &raw mut found,
        )?;
    }
    Ok(address(found))
}

/// Closes an opened IPC handle.
pub(crate) fn close_ipc_handle(context: &Context, base: Address) -> DriverResult {
    // SAFETY: see the module's invariants.
    unsafe { context.api().zeMemCloseIpcHandle(context.handle(), pointer(base)) }
}

/// Duplicates an fd by its number. `None` if no such fd is open.
pub(crate) fn duplicate_fd(number: i32) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: the number is only passed to the kernel, which checks it.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    fd.try_clone_to_owned().ok()
}

/// Closes the fd of a handle from a driver without `zeMemPutIpcHandle`.
pub(crate) fn close_fd(number: i32) {
    // SAFETY: drivers before 1.6 pass ownership of a handle's fd. It is closed once, on release.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

// Command lists

const NO_EVENT: ze_event_handle_t = ze_event_handle_t::NULL;

/// The source or the destination of a copy.
pub(crate) enum CopyEnd<'a> {
    /// Host memory to read.
    HostSource(&'a [u8]),
    /// Host memory to write.
    HostDestination(&'a mut [u8]),
    /// A range of the context's memory: checked address and size in bytes.
    Context(Address, usize),
}

impl CopyEnd<'_> {
    fn range(&mut self) -> (*mut c_void, usize) {
        match self {
            Self::HostSource(bytes) => (bytes.as_ptr().cast_mut().cast(), bytes.len()),
            Self::HostDestination(bytes) => (bytes.as_mut_ptr().cast(), bytes.len()),
            Self::Context(address, size) => (pointer(*address), *size),
        }
    }
}

/// Creates an immediate, synchronous command list on a queue group of a device.
pub(crate) fn create_list(
    context: &Context,
    device: ze_device_handle_t,
    group: u32,
) -> DriverResult<ze_command_list_handle_t> {
    let desc = ze_command_queue_desc_t {
        ordinal: group,
        mode: ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS,
        ..Default::default()
    };
    let mut list = ze_command_list_handle_t::NULL;
    // SAFETY: see the module's invariants.
    unsafe {
        context.api().zeCommandListCreateImmediate(
            context.handle(),
            device,
            &raw const desc,
            &raw mut list,
        )?;
    }
    Ok(list)
}

/// Destroys a command list. No call uses it any more.
pub(crate) fn destroy_list(context: &Context, list: ze_command_list_handle_t) -> DriverResult {
    // SAFETY: see the module's invariants.
    unsafe { context.api().zeCommandListDestroy(list) }
}

/// Copies as many bytes as the smaller end has. Returns when the copy is complete.
pub(crate) fn append_copy(
    context: &Context,
    list: ze_command_list_handle_t,
    mut to: CopyEnd<'_>,
    mut from: CopyEnd<'_>,
) -> DriverResult {
    let ((to, capacity), (from, size)) = (to.range(), from.range());
    let none = core::ptr::null_mut();
    let size = size.min(capacity);
    // SAFETY: see the module's invariants. Both ranges have `size` bytes and outlive the call,
    // which returns when the synchronous list has executed.
    unsafe { context.api().zeCommandListAppendMemoryCopy(list, to, from, size, NO_EVENT, 0, none) }
}

/// Fills `size` bytes. Returns when the fill is complete.
pub(crate) fn append_fill(
    context: &Context,
    list: ze_command_list_handle_t,
    (to, size): (Address, usize),
    byte: u8,
) -> DriverResult {
    let (to, pattern) = (pointer(to), (&raw const byte).cast());
    let none = core::ptr::null_mut();
    // SAFETY: as in `append_copy`.
    unsafe { context.api().zeCommandListAppendMemoryFill(list, to, pattern, 1, size, NO_EVENT, 0, none) }
}

// Errors

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
}

/// Returns the last failed Level Zero call of this crate in the current thread: the function and
/// its `ze_result_t`. [`Error`] does not carry the result in all of its variants.
#[must_use]
pub fn last_failure() -> Option<Failure> {
    LAST.get()
}

/// Records a failed call for [`last_failure`], and converts it to an error.
pub(crate) fn driver_error(failure: Failure) -> Error {
    LAST.set(Some(failure));
    let what = failure.function();
    match failure {
        Failure::Refused { result, .. } if result != ZE_RESULT_ERROR_UNSUPPORTED_FEATURE => Error::Driver {
            call: what,
            code: i64::from(result.0),
            name: result.name().unwrap_or("an unknown ze_result_t"),
            meaning: result.text(),
        },
        Failure::Absent { .. } => Error::NotSupported {
            what,
            owner: "this Level Zero loader or driver; install a newer one",
            native: 0,
        },
        _ => Error::NotSupported { what, owner: "this Level Zero driver", native: 0 },
    }
}

/// Converts a failed allocation to an error.
pub(crate) fn allocation_error(failure: Failure, layout: Layout) -> Error {
    let error = driver_error(failure);
    let out_of = |owner| Error::OutOfMemory { size: layout.size(), owner, native: 0 };
    match failure.result() {
        ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => out_of("the Level Zero device"),
        ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY => out_of("the Level Zero driver's host memory"),
        ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT => Error::BadAlignment { align: layout.align() },
        _ => error,
    }
}

/// Converts a failure to open the loader to an error.
pub(crate) fn open_error(error: &OpenError) -> Error {
    let owner = match error {
        OpenError::Library { .. } => {
            "this machine: its loader libze_loader.so.1 cannot be opened (install it, Debian: libze1)"
        }
        _ => "the library at the configured path: it is neither a Level Zero loader nor a driver",
    };
    Error::NotSupported { what: "Level Zero", owner, native: 0 }
}

/// The error for a loader without drivers.
pub(crate) const NO_DRIVER: Error = Error::NotSupported {
    what: "Level Zero",
    owner: "this machine: its loader finds no driver (install the driver of the device, Debian: libze-intel-gpu1; or name \
            one in ZE_ENABLE_ALT_DRIVERS)",
    native: 0,
};
