//! The calls of clients of other projects, in the order of their traces, and of this project's
//! provider. Together they call every function that the driver implements.
//!
//! A trace comes from the loader's validation layer, which logs each call
//! (`ZEL_LOADER_LOGGING_LEVEL=trace`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod driver;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::null_mut;

use driver::{error_code, library, run_in_child};
use level_zero_sys::*;

/// Size of the memory in the traces, in bytes.
const SIZE: usize = 1024;
const NO_EVENT: ze_event_handle_t = ze_event_handle_t::NULL;

/// A driver, and the functions that were called.
struct Trace {
    api: Api,
    driver: ze_driver_handle_t,
    devices: [ze_device_handle_t; 2],
    called: RefCell<BTreeSet<&'static str>>,
}

/// Calls a function with arguments as the specification requires, and records its name.
macro_rules! call {
    ($trace:ident.$function:ident($($argument:expr),* $(,)?)) => {{
        $trace.called.borrow_mut().insert(stringify!($function));
        // SAFETY: arguments as the specification requires; the memory outlives the commands.
        unsafe { $trace.api.$function($($argument),*) }
    }};
}

/// Calls a function that fills a structure, and returns the structure.
macro_rules! query {
    ($trace:ident.$function:ident($($argument:expr),*): $result:ty) => {{
        let mut result = <$result>::default();
        call!($trace.$function($($argument,)* &raw mut result)).unwrap();
        result
    }};
}

/// Calls a function that fills an array twice, as clients do: for the length, and for the items.
macro_rules! list {
    ($trace:ident.$function:ident($($argument:expr),*): $item:expr) => {{
        let mut count = 0;
        call!($trace.$function($($argument,)* &raw mut count, null_mut())).unwrap();
        let mut items = vec![$item; count as usize];
        call!($trace.$function($($argument,)* &raw mut count, items.as_mut_ptr())).unwrap();
        items
    }};
}

/// Calls a function that creates an object, and returns its handle.
macro_rules! create {
    ($trace:ident.$function:ident($($argument:expr),*): $handle:ty) => {{
        let mut handle = <$handle>::NULL;
        call!($trace.$function($($argument,)* &raw mut handle)).unwrap();
        handle
    }};
}

/// The kinds of memory, in the order of the traces.
#[derive(Clone, Copy)]
enum Kind {
    Host,
    Device,
    Shared,
}

impl Trace {
    fn allocate(&self, context: ze_context_handle_t, kind: Kind) -> *mut c_void {
        let (desc, host) = (ze_device_mem_alloc_desc_t::default(), ze_host_mem_alloc_desc_t::default());
        let (desc, host) = (&raw const desc, &raw const host);
        let (mut pointer, device, to) = (null_mut(), self.devices[0], SIZE);
        match kind {
            Kind::Host => call!(self.zeMemAllocHost(context, host, to, 0, &raw mut pointer)),
            Kind::Device => call!(self.zeMemAllocDevice(context, desc, to, 0, device, &raw mut pointer)),
            Kind::Shared => {
                call!(self.zeMemAllocShared(context, desc, host, to, 0, device, &raw mut pointer))
            }
        }
        .unwrap();
        if matches!(kind, Kind::Device) {
            for device in self.devices {
                call!(self.zeContextMakeMemoryResident(context, device, pointer, SIZE)).unwrap();
            }
        }
        let mut device = ze_device_handle_t::NULL;
        let mut properties = ze_memory_allocation_properties_t::default();
        call!(self.zeMemGetAllocProperties(context, pointer, &raw mut properties, &raw mut device)).unwrap();
        assert_eq!(device.is_null(), matches!(kind, Kind::Host));
        pointer
    }

    fn context(&self) -> ze_context_handle_t {
        let desc = ze_context_desc_t::default();
        create!(self.zeContextCreate(self.driver, &raw const desc): ze_context_handle_t)
    }

    fn immediate(
        &self,
        context: ze_context_handle_t,
        mode: ze_command_queue_mode_t,
    ) -> ze_command_list_handle_t {
        let flags = ZE_COMMAND_QUEUE_FLAG_IN_ORDER;
        let desc = ze_command_queue_desc_t { flags, mode, ..Default::default() };
        let device = self.devices[0];
        create!(self.zeCommandListCreateImmediate(context, device, &raw const desc): ze_command_list_handle_t)
    }

    fn events(
        &self,
        context: ze_context_handle_t,
        desc: &ze_event_pool_desc_t,
    ) -> (ze_event_pool_handle_t, Vec<ze_event_handle_t>) {
        let mut devices = self.devices;
        let pool =
            create!(self.zeEventPoolCreate(context, desc, 2, devices.as_mut_ptr()): ze_event_pool_handle_t);
        let event = |index| {
            let desc = ze_event_desc_t { index, signal: ZE_EVENT_SCOPE_FLAG_HOST, ..Default::default() };
            create!(self.zeEventCreate(pool, &raw const desc): ze_event_handle_t)
        };
        (pool, (0..desc.count).map(event).collect())
    }

    fn copy(
        &self,
        list: ze_command_list_handle_t,
        to: *mut c_void,
        from: *const c_void,
        signal: ze_event_handle_t,
    ) {
        call!(self.zeCommandListAppendMemoryCopy(list, to, from, SIZE, signal, 0, null_mut())).unwrap();
    }

    fn finish_list(&self, list: ze_command_list_handle_t) {
        call!(self.zeCommandListHostSynchronize(list, u64::MAX)).unwrap();
    }
}

/// Unified Runtime, whichever adapter: drivers, devices and their properties.
fn unified_runtime_starts() -> Trace {
    // SAFETY: the driver of this project.
    let api = unsafe { Api::load_driver(library()) }.unwrap();
    let mut trace = Trace {
        api,
        driver: ze_driver_handle_t::NULL,
        devices: [ze_device_handle_t::NULL; 2],
        called: RefCell::default(),
    };
    let started = &trace;
    call!(started.zeInit(ZE_INIT_FLAG_GPU_ONLY)).unwrap();
    let mut types = ze_init_driver_type_desc_t { flags: ZE_INIT_DRIVER_TYPE_FLAG_GPU, ..Default::default() };
    let (mut count, mut driver) = (1, ze_driver_handle_t::NULL);
    call!(started.zeInitDrivers(&raw mut count, &raw mut driver, &raw mut types)).unwrap();
    assert_eq!(list!(started.zeDriverGet(): ze_driver_handle_t::NULL), [driver]);
    let devices = list!(started.zeDeviceGet(driver): ze_device_handle_t::NULL);
    trace.driver = driver;
    trace.devices = devices.try_into().unwrap();

    let started = &trace;
    let _ = query!(started.zeDriverGetProperties(driver): ze_driver_properties_t);
    let mut version = ze_api_version_t(0);
    call!(started.zeDriverGetApiVersion(driver, &raw mut version)).unwrap();
    let _ =
        list!(started.zeDriverGetExtensionProperties(driver): ze_driver_extension_properties_t::default());
    // The functions of Intel's driver, which this one lacks.
    for name in [c"zexDriverImportExternalPointer", c"zexCounterBasedEventCreate2"] {
        let mut found = null_mut();
        let answer =
            call!(started.zeDriverGetExtensionFunctionAddress(driver, name.as_ptr(), &raw mut found));
        assert_eq!(error_code(answer), ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
    }
    let [one, two] = trace.devices;
    for device in trace.devices {
        let _ = query!(started.zeDeviceGetProperties(device): ze_device_properties_t);
        let group = ze_command_queue_group_properties_t::default();
        let _ = list!(started.zeDeviceGetCommandQueueGroupProperties(device): group);
        let _ = list!(started.zeDeviceGetSubDevices(device): ze_device_handle_t::NULL);
        let root = create!(started.zeDeviceGetRootDevice(device): ze_device_handle_t);
        assert!(root.is_null());
        let _ = query!(started.zeDeviceGetModuleProperties(device): ze_device_module_properties_t);
        let _ = query!(started.zeDeviceGetImageProperties(device): ze_device_image_properties_t);
        let _ = query!(started.zeDeviceGetComputeProperties(device): ze_device_compute_properties_t);
        let access =
            query!(started.zeDeviceGetMemoryAccessProperties(device): ze_device_memory_access_properties_t);
        assert_ne!(access.deviceAllocCapabilities & ZE_MEMORY_ACCESS_CAP_FLAG_RW, 0);
        let _ = list!(started.zeDeviceGetMemoryProperties(device): ze_device_memory_properties_t::default());
        let _ = list!(started.zeDeviceGetCacheProperties(device): ze_device_cache_properties_t::default());
        let (mut host, mut time) = (0, 0);
        call!(started.zeDeviceGetGlobalTimestamps(device, &raw mut host, &raw mut time)).unwrap();
    }
    let _ = query!(started.zeDeviceGetP2PProperties(one, two): ze_device_p2p_properties_t);
    let mut can_access = 0;
    call!(started.zeDeviceCanAccessPeer(one, two, &raw mut can_access)).unwrap();
    trace
}

/// dpctl over the first adapter: a queue with a command list and a fence, and an event that the
/// host resets before it is used again.
fn first_adapter(trace: &Trace) {
    let (context, device) = (trace.context(), trace.devices[0]);
    let memory = [Kind::Host, Kind::Device, Kind::Shared].map(|kind| trace.allocate(context, kind));
    let [host, on_device, shared] = memory;
    // SAFETY: host and shared memory of this size.
    let bytes = |pointer: *mut c_void| unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u8>(), SIZE) };
    let queue_desc =
        ze_command_queue_desc_t { mode: ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS, ..Default::default() };
    let queue_desc = &raw const queue_desc;
    let queue = create!(trace.zeCommandQueueCreate(context, device, queue_desc): ze_command_queue_handle_t);
    let list_desc = ze_command_list_desc_t::default();
    let list =
        create!(trace.zeCommandListCreate(context, device, &raw const list_desc): ze_command_list_handle_t);
    let fence_desc = ze_fence_desc_t::default();
    let fence = create!(trace.zeFenceCreate(queue, &raw const fence_desc): ze_fence_handle_t);
    let pool_desc = ze_event_pool_desc_t {
        flags: ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP,
        count: 2,
        ..Default::default()
    };
    let (pool, events) = trace.events(context, &pool_desc);
    let (event, mut other) = (events[0], events[1]);
    let mut executed = list;
    for round in 1..=3_u8 {
        bytes(host).fill(round);
        trace.copy(list, on_device, host, NO_EVENT);
        call!(trace.zeCommandListAppendBarrier(list, NO_EVENT, 0, null_mut())).unwrap();
        trace.copy(list, shared, on_device, event);
        call!(trace.zeCommandListClose(list)).unwrap();
        call!(trace.zeCommandQueueExecuteCommandLists(queue, 1, &raw mut executed, fence)).unwrap();
        call!(trace.zeEventHostSynchronize(event, u64::MAX)).unwrap();
        assert_eq!(bytes(shared), [round; SIZE]);
        while call!(trace.zeFenceQueryStatus(fence)).is_err() {
            std::thread::yield_now();
        }
        call!(trace.zeFenceReset(fence)).unwrap();
        call!(trace.zeCommandListReset(list)).unwrap();
        call!(trace.zeEventHostReset(event)).unwrap();
    }

    // Fills, advice, prefetches, barriers and profiling: dpctl's other tests.
    let advice = ZE_MEMORY_ADVICE_SET_READ_MOSTLY;
    let immediate = trace.immediate(context, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    call!(trace.zeCommandListAppendMemAdvise(immediate, device, shared, SIZE, advice)).unwrap();
    call!(trace.zeCommandListAppendMemoryPrefetch(immediate, shared, SIZE)).unwrap();
    call!(trace.zeCommandListAppendSignalEvent(immediate, other)).unwrap();
    call!(trace.zeCommandListAppendWaitOnEvents(immediate, 1, &raw mut other)).unwrap();
    let pattern = 7_u8;
    let from = (&raw const pattern).cast();
    call!(trace.zeCommandListAppendMemoryFill(immediate, shared, from, 1, SIZE, event, 1, &raw mut other))
        .unwrap();
    while call!(trace.zeEventQueryStatus(event)).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(bytes(shared), [7; SIZE]);
    let times = query!(trace.zeEventQueryKernelTimestamp(event): ze_kernel_timestamp_result_t);
    assert!(times.global.kernelStart > 0 && times.global.kernelStart <= times.global.kernelEnd);
    call!(trace.zeCommandListDestroy(immediate)).unwrap();

    for event in events {
        call!(trace.zeEventDestroy(event)).unwrap();
    }
    call!(trace.zeEventPoolDestroy(pool)).unwrap();
    call!(trace.zeFenceDestroy(fence)).unwrap();
    call!(trace.zeCommandListDestroy(list)).unwrap();
    call!(trace.zeCommandQueueDestroy(queue)).unwrap();
    for pointer in memory {
        call!(trace.zeMemFree(context, pointer)).unwrap();
    }
}

/// dpctl over the second adapter: immediate lists of the default context, and counter-based events
/// that are used again without a reset.
fn second_adapter(trace: &Trace) {
    trace.called.borrow_mut().insert("zeDriverGetDefaultContext");
    // SAFETY: a handle of the driver.
    let context = unsafe { trace.api.zeDriverGetDefaultContext(trace.driver) }.unwrap();
    let memory = [Kind::Host, Kind::Device, Kind::Shared].map(|kind| trace.allocate(context, kind));
    let [host, on_device, shared] = memory;
    // SAFETY: host and shared memory of this size.
    let bytes = |pointer: *mut c_void| unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u8>(), SIZE) };
    let lists = [(); 4].map(|()| trace.immediate(context, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS));
    let counter_based = ze_event_pool_counter_based_exp_desc_t {
        flags: ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_IMMEDIATE,
        ..Default::default()
    };
    let pool_desc = ze_event_pool_desc_t {
        pNext: (&raw const counter_based).cast(),
        flags: ZE_EVENT_POOL_FLAG_HOST_VISIBLE,
        count: 64,
        ..Default::default()
    };
    let (_, events) = trace.events(context, &pool_desc);
    for round in 0..100_u8 {
        let list = lists[usize::from(round) % lists.len()];
        bytes(host).fill(round);
        trace.copy(list, on_device, host, NO_EVENT);
        trace.copy(list, shared, on_device, events[0]);
        call!(trace.zeEventHostSynchronize(events[0], u64::MAX)).unwrap();
        assert_eq!(bytes(shared), [round; SIZE]);
    }
    for list in lists {
        trace.finish_list(list);
    }
    let desc = ze_memory_free_ext_desc_t {
        freePolicy: ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE,
        ..Default::default()
    };
    for pointer in memory {
        call!(trace.zeMemFreeExt(context, &raw const desc, pointer)).unwrap();
    }
}

/// `ze_peer --ipc` of level-zero-tests: it sends an fd, and opens a handle whose other bytes are
/// undefined. It resets an immediate list.
fn ze_peer(trace: &Trace) {
    let (producer, consumer) = (trace.context(), trace.context());
    let memory = trace.allocate(producer, Kind::Device);
    let host = trace.allocate(producer, Kind::Host);
    let list = trace.immediate(producer, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    // SAFETY: host memory of this size.
    unsafe { host.cast::<u8>().write_bytes(3, SIZE) };
    trace.copy(list, memory, host, NO_EVENT);
    trace.finish_list(list);
    let handle = query!(trace.zeMemGetIpcHandle(producer, memory): ze_ipc_mem_handle_t);
    let mut received = ze_ipc_mem_handle_t { data: [0x5a; ZE_MAX_IPC_HANDLE_SIZE] };
    received.data[..4].copy_from_slice(&handle.data[..4]);
    let mut opened = null_mut();
    call!(trace.zeMemOpenIpcHandle(consumer, trace.devices[0], received, 0, &raw mut opened)).unwrap();
    let list = trace.immediate(consumer, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    let back = trace.allocate(consumer, Kind::Host);
    trace.copy(list, back, opened, NO_EVENT);
    trace.finish_list(list);
    call!(trace.zeCommandListReset(list)).unwrap();
    // SAFETY: host memory of this size.
    assert_eq!(unsafe { std::slice::from_raw_parts(back.cast::<u8>(), SIZE) }, [3; SIZE]);
    call!(trace.zeMemCloseIpcHandle(consumer, opened)).unwrap();
    for (context, pointer) in [(producer, memory), (producer, host), (consumer, back)] {
        call!(trace.zeMemFree(context, pointer)).unwrap();
    }
}

/// This project's provider: page size, residency, fds of handles, and release of all objects.
fn provider(trace: &Trace) {
    let (context, device) = (trace.context(), trace.devices[0]);
    let list = trace.immediate(context, ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
    let mut page = 0;
    call!(trace.zeVirtualMemQueryPageSize(context, device, 1, &raw mut page)).unwrap();
    let _ = query!(trace.zeDeviceGetExternalMemoryProperties(device): ze_device_external_memory_properties_t);
    let memory = trace.allocate(context, Kind::Device);
    let (mut base, mut size) = (null_mut(), 0);
    call!(trace.zeMemGetAddressRange(context, memory, &raw mut base, &raw mut size)).unwrap();
    assert_eq!((base, size), (memory, SIZE));
    let handle = query!(trace.zeMemGetIpcHandle(context, memory): ze_ipc_mem_handle_t);
    let fd = query!(trace.zeMemGetFileDescriptorFromIpcHandleExp(context, handle): u64);
    let again = query!(trace.zeMemGetIpcHandleFromFileDescriptorExp(context, fd): ze_ipc_mem_handle_t);
    let mut opened = null_mut();
    call!(trace.zeMemOpenIpcHandle(context, device, again, 0, &raw mut opened)).unwrap();
    call!(trace.zeMemCloseIpcHandle(context, opened)).unwrap();
    call!(trace.zeMemPutIpcHandle(context, handle)).unwrap();
    call!(trace.zeContextEvictMemory(context, trace.devices[1], memory, SIZE)).unwrap();
    call!(trace.zeMemFree(context, memory)).unwrap();
    call!(trace.zeCommandListDestroy(list)).unwrap();
    call!(trace.zeContextDestroy(context)).unwrap();
}

/// Returns the functions that the driver implements: members of its tables that do not point to
/// the function for all others.
fn implemented() -> BTreeSet<&'static str> {
    type Get = unsafe extern "C" fn(ze_api_version_t, *mut usize) -> ze_result_t;
    let mut found = Vec::new();
    // SAFETY: the driver of this project; its functions fill tables of pointers.
    unsafe {
        let driver = libloading::Library::new(library()).unwrap();
        for table in layout::tables() {
            let mut members = [0; 128];
            let Ok(get) = driver.get::<Get>(table.get) else { continue };
            assert_eq!(get(ZE_API_VERSION_CURRENT, members.as_mut_ptr()), ZE_RESULT_SUCCESS);
            found.extend(table.members.iter().zip(members).map(|(member, to)| (member.function, to)));
        }
    }
    let (_, unsupported) = *found.iter().find(|(function, _)| *function == c"zeModuleCreate").unwrap();
    let is_implemented = |(function, to): &(&'static std::ffi::CStr, usize)| {
        (*to != unsupported).then(|| function.to_str().unwrap())
    };
    found.iter().filter_map(is_implemented).collect()
}

#[test]
fn clients_call_every_implemented_function() {
    run_in_child("clients_call_every_implemented_function", &[], || {
        let trace = unified_runtime_starts();
        for client in [first_adapter, second_adapter, ze_peer, provider] {
            client(&trace);
        }
        assert_eq!(implemented(), trace.called.into_inner());
    });
}
