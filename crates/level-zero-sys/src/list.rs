//! Command lists and what copies take.

use core::ffi::c_void;

/// Called on the host when a list reaches it; no function of this interface may be called from it.
pub type ze_host_function_callback_t = Option<unsafe extern "C" fn(pUserData: *mut c_void)>;

enums! {
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
    /// How a list is used.
    ze_command_list_flags_t {
        ZE_COMMAND_LIST_FLAG_RELAXED_ORDERING = 1 << 0,
        ZE_COMMAND_LIST_FLAG_MAXIMIZE_THROUGHPUT = 1 << 1,
        ZE_COMMAND_LIST_FLAG_EXPLICIT_ONLY = 1 << 2,
        ZE_COMMAND_LIST_FLAG_IN_ORDER = 1 << 3,
        ZE_COMMAND_LIST_FLAG_EXP_CLONEABLE = 1 << 4,
        ZE_COMMAND_LIST_FLAG_COPY_OFFLOAD_HINT = 1 << 5,
    }
}

plain! {
    /// A box of memory, in bytes, rows and slices.
    ze_copy_region_t {
        originX: u32,
        originY: u32,
        originZ: u32,
        width: u32,
        height: u32,
        depth: u32,
    }
}

chained! {
    /// How a list is to be made.
    ze_command_list_desc_t: ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC {
        pNext: *const c_void,
        commandQueueGroupOrdinal: u32,
        flags: ze_command_list_flags_t,
    }
}
