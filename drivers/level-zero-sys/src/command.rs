//! Contexts, and what is done in them: queues, command lists, events and fences.

use core::ffi::c_void;

enums! {
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
