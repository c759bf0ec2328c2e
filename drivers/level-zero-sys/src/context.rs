//! Contexts, and what is in them: allocations, with what other interfaces and processes have of them;
//! queues, command lists, events and fences.

use core::ffi::{c_int, c_void};

use crate::device::{ze_driver_memory_free_policy_ext_flags_t, ze_external_memory_type_flags_t};

enums! {
    /// Where an allocation lies.
    ze_memory_type_t {
        ZE_MEMORY_TYPE_UNKNOWN = 0,
        ZE_MEMORY_TYPE_HOST = 1,
        ZE_MEMORY_TYPE_DEVICE = 2,
        ZE_MEMORY_TYPE_SHARED = 3,
        ZE_MEMORY_TYPE_HOST_IMPORTED = 4,
    }
    /// Whether submitting waits for the commands.
    ze_command_queue_mode_t {
        ZE_COMMAND_QUEUE_MODE_DEFAULT = 0,
        ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS = 1,
        ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS = 2,
    }
    /// Which queue comes first.
    ze_command_queue_priority_t {
        ZE_COMMAND_QUEUE_PRIORITY_NORMAL = 0,
        ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_LOW = 1,
        ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH = 2,
    }
    /// How memory will be used.
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
    /// How device memory is allocated.
    ze_device_mem_alloc_flags_t {
        ZE_DEVICE_MEM_ALLOC_FLAG_BIAS_CACHED = 1 << 0,
        ZE_DEVICE_MEM_ALLOC_FLAG_BIAS_UNCACHED = 1 << 1,
        ZE_DEVICE_MEM_ALLOC_FLAG_BIAS_INITIAL_PLACEMENT = 1 << 2,
    }
    /// How host memory is allocated.
    ze_host_mem_alloc_flags_t {
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_CACHED = 1 << 0,
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_UNCACHED = 1 << 1,
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_WRITE_COMBINED = 1 << 2,
        ZE_HOST_MEM_ALLOC_FLAG_BIAS_INITIAL_PLACEMENT = 1 << 3,
        ZE_HOST_MEM_ALLOC_FLAG_MEM_READ_ONLY = 1 << 4,
    }
    /// Which limits an allocation may exceed.
    ze_relaxed_allocation_limits_ext_flags_t {
        ZE_RELAXED_ALLOCATION_LIMITS_EXT_FLAG_MAX_SIZE = 1 << 0,
    }
    /// Which limits an allocation may exceed; the older extension.
    ze_relaxed_allocation_limits_exp_flags_t {
        ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE = 1 << 0,
    }
    /// How memory of another process is opened.
    ze_ipc_memory_flags_t {
        ZE_IPC_MEMORY_FLAG_BIAS_CACHED = 1 << 0,
        ZE_IPC_MEMORY_FLAG_BIAS_UNCACHED = 1 << 1,
    }
    /// How a context is made.
    ze_context_flags_t {
        ZE_CONTEXT_FLAG_TBD = 1 << 0,
    }
    /// How a queue is used.
    ze_command_queue_flags_t {
        ZE_COMMAND_QUEUE_FLAG_EXPLICIT_ONLY = 1 << 0,
        ZE_COMMAND_QUEUE_FLAG_IN_ORDER = 1 << 1,
        ZE_COMMAND_QUEUE_FLAG_COPY_OFFLOAD_HINT = 1 << 2,
    }
    /// How a fence is made.
    ze_fence_flags_t {
        ZE_FENCE_FLAG_SIGNALED = 1 << 0,
    }
    /// How a list is used.
    ze_command_list_flags_t {
        ZE_COMMAND_LIST_FLAG_RELAXED_ORDERING = 1 << 0,
        ZE_COMMAND_LIST_FLAG_MAXIMIZE_THROUGHPUT = 1 << 1,
        ZE_COMMAND_LIST_FLAG_EXPLICIT_ONLY = 1 << 2,
        ZE_COMMAND_LIST_FLAG_IN_ORDER = 1 << 3,
        ZE_COMMAND_LIST_FLAG_EXP_CLONEABLE = 1 << 4,
        ZE_COMMAND_LIST_FLAG_COPY_OFFLOAD_HINT = 1 << 5,
    }
    /// How a pool of events is used.
    ze_event_pool_flags_t {
        ZE_EVENT_POOL_FLAG_HOST_VISIBLE = 1 << 0,
        ZE_EVENT_POOL_FLAG_IPC = 1 << 1,
        ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP = 1 << 2,
        ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP = 1 << 3,
    }
    /// Which processors see memory when an event is signalled or waited for.
    ze_event_scope_flags_t {
        ZE_EVENT_SCOPE_FLAG_SUBDEVICE = 1 << 0,
        ZE_EVENT_SCOPE_FLAG_DEVICE = 1 << 1,
        ZE_EVENT_SCOPE_FLAG_HOST = 1 << 2,
    }
    /// Which lists signal the counter-based events of a pool.
    ze_event_pool_counter_based_exp_flags_t {
        ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_IMMEDIATE = 1 << 0,
        ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_NON_IMMEDIATE = 1 << 1,
    }
}

plain! {
    /// Begin and end, in ticks of the device.
    ze_kernel_timestamp_data_t {
        kernelStart: u64,
        kernelEnd: u64,
    }
    /// Times by the device's clock and by the context's.
    ze_kernel_timestamp_result_t {
        global: ze_kernel_timestamp_data_t,
        context: ze_kernel_timestamp_data_t,
    }
}

chained! {
    /// How device memory is to be allocated.
    ze_device_mem_alloc_desc_t: ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC {
        pNext: *const c_void,
        flags: ze_device_mem_alloc_flags_t,
        ordinal: u32,
    }
    /// How host memory is to be allocated.
    ze_host_mem_alloc_desc_t: ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC {
        pNext: *const c_void,
        flags: ze_host_mem_alloc_flags_t,
    }
    /// What an allocation is. `id` differs for each allocation, whatever its address.
    ze_memory_allocation_properties_t: ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES {
        pNext: *mut c_void,
        r#type: ze_memory_type_t,
        id: u64,
        pageSize: u64,
    }
    /// When memory is to be given back.
    ze_memory_free_ext_desc_t: ZE_STRUCTURE_TYPE_MEMORY_FREE_EXT_DESC {
        pNext: *const c_void,
        freePolicy: ze_driver_memory_free_policy_ext_flags_t,
    }
    /// Asks for more than `maxMemAllocSize`.
    ze_relaxed_allocation_limits_ext_desc_t: ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXT_DESC {
        pNext: *const c_void,
        flags: ze_relaxed_allocation_limits_ext_flags_t,
    }
    /// Asks for more than `maxMemAllocSize`; the older extension.
    ze_relaxed_allocation_limits_exp_desc_t: ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC {
        pNext: *const c_void,
        flags: ze_relaxed_allocation_limits_exp_flags_t,
    }
    /// Asks for memory that can be exported in these forms.
    ze_external_memory_export_desc_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
    }
    /// Memory to be made from an fd.
    ze_external_memory_import_fd_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
        fd: c_int,
    }
    /// Where the fd of exportable memory is written.
    ze_external_memory_export_fd_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
        fd: c_int,
    }
    /// How a context is to be made.
    ze_context_desc_t: ZE_STRUCTURE_TYPE_CONTEXT_DESC {
        pNext: *const c_void,
        flags: ze_context_flags_t,
    }
    /// How a queue is to be made.
    ze_command_queue_desc_t: ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC {
        pNext: *const c_void,
        ordinal: u32,
        index: u32,
        flags: ze_command_queue_flags_t,
        mode: ze_command_queue_mode_t,
        priority: ze_command_queue_priority_t,
    }
    /// How a fence is to be made.
    ze_fence_desc_t: ZE_STRUCTURE_TYPE_FENCE_DESC {
        pNext: *const c_void,
        flags: ze_fence_flags_t,
    }
    /// How a list is to be made.
    ze_command_list_desc_t: ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC {
        pNext: *const c_void,
        commandQueueGroupOrdinal: u32,
        flags: ze_command_list_flags_t,
    }
    /// How a pool of events is to be made.
    ze_event_pool_desc_t: ZE_STRUCTURE_TYPE_EVENT_POOL_DESC {
        pNext: *const c_void,
        flags: ze_event_pool_flags_t,
        count: u32,
    }
    /// How an event is to be made.
    ze_event_desc_t: ZE_STRUCTURE_TYPE_EVENT_DESC {
        pNext: *const c_void,
        index: u32,
        signal: ze_event_scope_flags_t,
        wait: ze_event_scope_flags_t,
    }
    /// Asks for counter-based events.
    ze_event_pool_counter_based_exp_desc_t: ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC {
        pNext: *const c_void,
        flags: ze_event_pool_counter_based_exp_flags_t,
    }
}
