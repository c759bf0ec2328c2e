//! Contexts, queues and fences.

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
    /// How much power may be saved at the cost of speed.
    ze_power_saving_hint_type_t {
        ZE_POWER_SAVING_HINT_TYPE_MIN = 0,
        ZE_POWER_SAVING_HINT_TYPE_MAX = 100,
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
}

chained! {
    /// How a context is to be made.
    ze_context_desc_t: ZE_STRUCTURE_TYPE_CONTEXT_DESC {
        pNext: *const c_void,
        flags: ze_context_flags_t,
    }
    /// How much power a context may save.
    ze_context_power_saving_hint_exp_desc_t: ZE_STRUCTURE_TYPE_POWER_SAVING_HINT_EXP_DESC {
        pNext: *const c_void,
        hint: u32,
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
}
