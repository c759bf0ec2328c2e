//! Allocations: how they are made, what they are, how they are freed, and what other interfaces and
//! processes have of them.

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
}
