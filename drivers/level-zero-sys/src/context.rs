//! Contexts and their objects: allocations, and their exchange with other interfaces and processes;
//! queues, command lists, events and fences.

use core::ffi::{c_int, c_void};

use crate::device::{ze_driver_memory_free_policy_ext_flags_t, ze_external_memory_type_flags_t};

enums! {
    /// The kind of an allocation.
    ze_memory_type_t {
        ZE_MEMORY_TYPE_UNKNOWN = 0,
        ZE_MEMORY_TYPE_HOST = 1,
        ZE_MEMORY_TYPE_DEVICE = 2,
        ZE_MEMORY_TYPE_SHARED = 3,
        ZE_MEMORY_TYPE_HOST_IMPORTED = 4,
    }
    /// The mode of a queue: whether submitting waits for the commands.
    ze_command_queue_mode_t {
        ZE_COMMAND_QUEUE_MODE_DEFAULT = 0,
        ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS = 1,
        ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS = 2,
    }
    /// The priority of a queue.
    ze_command_queue_priority_t {
        ZE_COMMAND_QUEUE_PRIORITY_NORMAL = 0,
        ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_LOW = 1,
        ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH = 2,
    }
    /// Advice on the use of memory.
    ze_memory_advice_t {
        ZE_MEMORY_ADVICE_SET_READ_MOSTLY = 0,
        ZE_MEMORY_ADVICE_CLEAR_READ_MOSTLY = 1,
        ZE_MEMORY_ADVICE_SET_PREFERRED_LOCATION = 2,
        ZE_MEMORY_ADVICE_CLEAR_PREFERRED_LOCATION = 3,
        ZE_MEMORY_ADVICE_SET_NON_ATOMIC_MOSTLY = 4,
        ZE_MEMORY_ADVICE_CLEAR_NON_ATOMIC_MOSTLY = 5,
        ZE_MEMORY_ADVICE_BIAS_CACHED = 6,
        ZE_MEMORY_ADVICE_BIAS_UNCACHED = 7,
        ZE_MEMORY_ADVICE_SET_SYSTEM_MEMORY_PREFERRED_LOCATION = 8,
        ZE_MEMORY_ADVICE_CLEAR_SYSTEM_MEMORY_PREFERRED_LOCATION = 9,
    }
}

flags! {
    /// Flags of device memory.
    ze_device_mem_alloc_flags_t {
        ZE_DEVICE_MEM_ALLOC_FLAG_BIAS_CACHED = 1 << 0,
        ZE_DEVICE_MEM_ALLOC_FLAG_BIAS_UNCACHED = 1 << 1,
        ZE_DEVICE_MEM_ALLOC_FLAG_BIAS_INITIAL_PLACEMENT = 1 << 2,
    }
    /// Flags of host memory.
    ze_host_mem_alloc_flags_t {
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_CACHED = 1 << 0,
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_UNCACHED = 1 << 1,
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_WRITE_COMBINED = 1 << 2,
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_INITIAL_PLACEMENT = 1 << 3,
        ZE_HOST_MEM_ALLOC_FLAG_MEM_READ_ONLY = 1 << 4,
    }
    /// Limits that an allocation may exceed.
    ze_relaxed_allocation_limits_ext_flags_t {
        ZE_RELAXED_ALLOCATION_LIMITS_EXT_FLAG_MAX_SIZE = 1 << 0,
    }
    /// Limits that an allocation may exceed; the older extension.
    ze_relaxed_allocation_limits_exp_flags_t {
        ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE = 1 << 0,
    }
    /// Flags of opening an IPC handle.
    ze_ipc_memory_flags_t {
        ZE_IPC_MEMORY_FLAG_BIAS_CACHED = 1 << 0,
        ZE_IPC_MEMORY_FLAG_BIAS_UNCACHED = 1 << 1,
    }
    /// Flags of a context.
    ze_context_flags_t {
        ZE_CONTEXT_FLAG_TBD = 1 << 0,
    }
    /// Flags of a queue.
    ze_command_queue_flags_t {
        ZE_COMMAND_QUEUE_FLAG_EXPLICIT_ONLY = 1 << 0,
        ZE_COMMAND_QUEUE_FLAG_IN_ORDER = 1 << 1,
        ZE_COMMAND_QUEUE_FLAG_COPY_OFFLOAD_HINT = 1 << 2,
    }
    /// Flags of a fence.
    ze_fence_flags_t {
        ZE_FENCE_FLAG_SIGNALED = 1 << 0,
    }
    /// Flags of a command list.
    ze_command_list_flags_t {
        ZE_COMMAND_LIST_FLAG_RELAXED_ORDERING = 1 << 0,
        ZE_COMMAND_LIST_FLAG_MAXIMIZE_THROUGHPUT = 1 << 1,
        ZE_COMMAND_LIST_FLAG_EXPLICIT_ONLY = 1 << 2,
        ZE_COMMAND_LIST_FLAG_IN_ORDER = 1 << 3,
        ZE_COMMAND_LIST_FLAG_EXP_CLONEABLE = 1 << 4,
        ZE_COMMAND_LIST_FLAG_COPY_OFFLOAD_HINT = 1 << 5,
    }
    /// Flags of an event pool.
    ze_event_pool_flags_t {
        ZE_EVENT_POOL_FLAG_HOST_VISIBLE = 1 << 0,
        ZE_EVENT_POOL_FLAG_IPC = 1 << 1,
        ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP = 1 << 2,
        ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP = 1 << 3,
    }
    /// The scope of an event: the processors that see memory when it is signalled or waited for.
    ze_event_scope_flags_t {
        ZE_EVENT_SCOPE_FLAG_SUBDEVICE = 1 << 0,
        ZE_EVENT_SCOPE_FLAG_DEVICE = 1 << 1,
        ZE_EVENT_SCOPE_FLAG_HOST = 1 << 2,
    }
    /// The command lists that signal the counter-based events of a pool.
    ze_event_pool_counter_based_exp_flags_t {
        ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_IMMEDIATE = 1 << 0,
        ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_NON_IMMEDIATE = 1 << 1,
    }
}

plain! {
    /// Start and end times in ticks of the device.
    ze_kernel_timestamp_data_t {
        kernelStart: u64,
        kernelEnd: u64,
    }
    /// Times of the device's and of the context's clock.
    ze_kernel_timestamp_result_t {
        global: ze_kernel_timestamp_data_t,
        context: ze_kernel_timestamp_data_t,
    }
}

chained! {
    /// The parameters of an allocation of device memory.
    ze_device_mem_alloc_desc_t: ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC {
        pNext: *const c_void,
        flags: ze_device_mem_alloc_flags_t,
        ordinal: u32,
    }
    /// The parameters of an allocation of host memory.
    ze_host_mem_alloc_desc_t: ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC {
        pNext: *const c_void,
        flags: ze_host_mem_alloc_flags_t,
    }
    /// The properties of an allocation. `id` is unique over time, also for reused addresses.
    ze_memory_allocation_properties_t: ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES {
        pNext: *mut c_void,
        r#type: ze_memory_type_t,
        id: u64,
        pageSize: u64,
    }
    /// The parameters of `zeMemFreeExt`.
    ze_memory_free_ext_desc_t: ZE_STRUCTURE_TYPE_MEMORY_FREE_EXT_DESC {
        pNext: *const c_void,
        freePolicy: ze_driver_memory_free_policy_ext_flags_t,
    }
    /// Requests an allocation beyond `maxMemAllocSize`.
    ze_relaxed_allocation_limits_ext_desc_t: ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXT_DESC {
        pNext: *const c_void,
        flags: ze_relaxed_allocation_limits_ext_flags_t,
    }
    /// Requests an allocation beyond `maxMemAllocSize`; the older extension.
    ze_relaxed_allocation_limits_exp_desc_t: ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC {
        pNext: *const c_void,
        flags: ze_relaxed_allocation_limits_exp_flags_t,
    }
    /// Requests memory that can be exported as these types.
    ze_external_memory_export_desc_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
    }
    /// The fd to import memory from.
    ze_external_memory_import_fd_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
        fd: c_int,
    }
    /// Receives the fd of exported memory.
    ze_external_memory_export_fd_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
        fd: c_int,
    }
    /// The creation parameters of a context.
    ze_context_desc_t: ZE_STRUCTURE_TYPE_CONTEXT_DESC {
        pNext: *const c_void,
        flags: ze_context_flags_t,
    }
    /// The creation parameters of a queue.
    ze_command_queue_desc_t: ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC {
        pNext: *const c_void,
        ordinal: u32,
        index: u32,
        flags: ze_command_queue_flags_t,
        mode: ze_command_queue_mode_t,
        priority: ze_command_queue_priority_t,
    }
    /// The creation parameters of a fence.
    ze_fence_desc_t: ZE_STRUCTURE_TYPE_FENCE_DESC {
        pNext: *const c_void,
        flags: ze_fence_flags_t,
    }
    /// The creation parameters of a command list.
    ze_command_list_desc_t: ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC {
        pNext: *const c_void,
        commandQueueGroupOrdinal: u32,
        flags: ze_command_list_flags_t,
    }
    /// The creation parameters of an event pool.
    ze_event_pool_desc_t: ZE_STRUCTURE_TYPE_EVENT_POOL_DESC {
        pNext: *const c_void,
        flags: ze_event_pool_flags_t,
        count: u32,
    }
    /// The creation parameters of an event.
    ze_event_desc_t: ZE_STRUCTURE_TYPE_EVENT_DESC {
        pNext: *const c_void,
        index: u32,
        signal: ze_event_scope_flags_t,
        wait: ze_event_scope_flags_t,
    }
    /// Requests counter-based events.
    ze_event_pool_counter_based_exp_desc_t: ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC {
        pNext: *const c_void,
        flags: ze_event_pool_counter_based_exp_flags_t,
    }
}
