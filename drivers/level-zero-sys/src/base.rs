//! Common parts of the interface: versions, structure types, handles, and the chain of `pNext`.

use core::ffi::c_void;

/// True (not 0) or false (0).
pub type ze_bool_t = u8;
/// Bytes of a handle for other processes.
pub const ZE_MAX_IPC_HANDLE_SIZE: usize = 64;

/// A version from its major and minor number.
#[must_use]
pub const fn make_version(major: u32, minor: u32) -> u32 {
    (major << 16) | (minor & 0xffff)
}

handles! {
    /// A driver.
    ze_driver_handle_t;
    /// A device or a sub-device.
    ze_device_handle_t;
    /// A context: the owner of memory, queues and events.
    ze_context_handle_t;
    /// A queue, which executes closed command lists in order.
    ze_command_queue_handle_t;
    /// A list of commands; an immediate one executes each at once.
    ze_command_list_handle_t;
    /// A fence: signalled when a queue has executed command lists.
    ze_fence_handle_t;
    /// A pool of events.
    ze_event_pool_handle_t;
    /// An event: signalled and waited for by commands and by the host.
    ze_event_handle_t;
}

enums! {
    /// A version of the specification: major in the upper half, minor in the lower.
    ze_api_version_t {
        ZE_API_VERSION_1_0 = make_version(1, 0),
        ZE_API_VERSION_1_1 = make_version(1, 1),
        ZE_API_VERSION_1_2 = make_version(1, 2),
        ZE_API_VERSION_1_3 = make_version(1, 3),
        ZE_API_VERSION_1_4 = make_version(1, 4),
        ZE_API_VERSION_1_5 = make_version(1, 5),
        ZE_API_VERSION_1_6 = make_version(1, 6),
        ZE_API_VERSION_1_7 = make_version(1, 7),
        ZE_API_VERSION_1_8 = make_version(1, 8),
        ZE_API_VERSION_1_9 = make_version(1, 9),
        ZE_API_VERSION_1_10 = make_version(1, 10),
        ZE_API_VERSION_1_11 = make_version(1, 11),
        ZE_API_VERSION_1_12 = make_version(1, 12),
        ZE_API_VERSION_1_13 = make_version(1, 13),
        ZE_API_VERSION_1_14 = make_version(1, 14),
        ZE_API_VERSION_1_15 = make_version(1, 15),
        ZE_API_VERSION_1_16 = make_version(1, 16),
        ZE_API_VERSION_1_17 = make_version(1, 17),
        ZE_API_VERSION_CURRENT = make_version(1, 17),
    }
    /// The type of a structure: the number in its `stype`.
    ze_structure_type_t {
        ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES = 0x1,
        ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES = 0x3,
        ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES = 0x4,
        ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES = 0x5,
        ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES = 0x6,
        ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES = 0x7,
        ZE_STRUCTURE_TYPE_DEVICE_MEMORY_ACCESS_PROPERTIES = 0x8,
        ZE_STRUCTURE_TYPE_DEVICE_CACHE_PROPERTIES = 0x9,
        ZE_STRUCTURE_TYPE_DEVICE_IMAGE_PROPERTIES = 0xa,
        ZE_STRUCTURE_TYPE_DEVICE_P2P_PROPERTIES = 0xb,
        ZE_STRUCTURE_TYPE_DEVICE_EXTERNAL_MEMORY_PROPERTIES = 0xc,
        ZE_STRUCTURE_TYPE_CONTEXT_DESC = 0xd,
        ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC = 0xe,
        ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC = 0xf,
        ZE_STRUCTURE_TYPE_EVENT_POOL_DESC = 0x10,
        ZE_STRUCTURE_TYPE_EVENT_DESC = 0x11,
        ZE_STRUCTURE_TYPE_FENCE_DESC = 0x12,
        ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC = 0x15,
        ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC = 0x16,
        ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES = 0x17,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC = 0x18,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD = 0x19,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD = 0x1a,
        ZE_STRUCTURE_TYPE_DRIVER_MEMORY_FREE_EXT_PROPERTIES = 0x10009,
        ZE_STRUCTURE_TYPE_MEMORY_FREE_EXT_DESC = 0x1000a,
        ZE_STRUCTURE_TYPE_DEVICE_MEMORY_EXT_PROPERTIES = 0x1000e,
        ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXT_DESC = 0x10016,
        ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC = 0x00020001,
        ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2 = 0x00020006,
        ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC = 0x00020014,
        ZE_STRUCTURE_TYPE_INIT_DRIVER_TYPE_DESC = 0x00020021,
        ZE_STRUCTURE_TYPE_DEVICE_CACHELINE_SIZE_EXT = 0x00020028,
    }
}

plain! {
    /// An IPC handle of memory. Only the driver interprets the bytes.
    ze_ipc_mem_handle_t {
        data: [u8; ZE_MAX_IPC_HANDLE_SIZE],
    }
    /// The first members of every structure in a chain.
    ze_base_desc_t {
        stype: ze_structure_type_t,
        pNext: *const c_void,
    }
}

/// The search of a chain of structures linked by `pNext`.
pub mod chain {
    use core::ffi::c_void;

    use super::{ze_base_desc_t, ze_structure_type_t};

    /// The maximum length of a chain. A longer one contains a cycle.
    pub const LONGEST_CHAIN: usize = 64;

    /// A structure that begins with its type and a pointer to the next.
    ///
    /// # Safety
    /// The type begins with `stype` and `pNext`, and structures of it carry [`Chained::TYPE`].
    pub unsafe trait Chained {
        /// Its value of `stype`.
        const TYPE: ze_structure_type_t;
    }

    /// Returns the first structure of type `T` in the chain that begins at `next`, or null.
    ///
    /// # Safety
    /// `next` is null or leads to a chain of structures, each of the type in its `stype`.
    #[must_use]
    pub unsafe fn find<T: Chained>(next: *const c_void) -> *const T {
        // SAFETY: the caller upholds the contract.
        unsafe { find_type(next, T::TYPE) }.cast()
    }

    /// Does the same as [`find`] for a writable chain.
    ///
    /// # Safety
    /// As for [`find`], and the chain may be written to.
    #[must_use]
    pub unsafe fn find_mut<T: Chained>(next: *mut c_void) -> *mut T {
        // SAFETY: the caller upholds the contract.
        unsafe { find_type(next, T::TYPE) }.cast_mut().cast()
    }

    unsafe fn find_type(mut next: *const c_void, wanted: ze_structure_type_t) -> *const c_void {
        for _ in 0..LONGEST_CHAIN {
            if next.is_null() {
                break;
            }
            // SAFETY: by the contract of the callers, each link is null or begins with these
            // members.
            let link = unsafe { next.cast::<ze_base_desc_t>().read_unaligned() };
            if link.stype == wanted {
                return next;
            }
            next = link.pNext;
        }
        core::ptr::null()
    }
}
