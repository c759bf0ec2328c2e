//! Allocations: how they are made, what they are, how they are freed.

use core::ffi::c_void;

use crate::driver::ze_driver_memory_free_policy_ext_flags_t;

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
    /// Whether memory is to be compressed.
    ze_memory_compression_hints_ext_flags_t {
        ZE_MEMORY_COMPRESSION_HINTS_EXT_FLAG_COMPRESSED = 1 << 0,
        ZE_MEMORY_COMPRESSION_HINTS_EXT_FLAG_UNCOMPRESSED = 1 << 1,
    }
    /// Memory for ray tracing.
    ze_raytracing_mem_alloc_ext_flags_t {
        ZE_RAYTRACING_MEM_ALLOC_EXT_FLAG_TBD = 1 << 0,
    }
    /// Who uses atomic operations on memory.
    ze_memory_atomic_attr_exp_flags_t {
        ZE_MEMORY_ATOMIC_ATTR_EXP_FLAG_NO_ATOMICS = 1 << 0,
        ZE_MEMORY_ATOMIC_ATTR_EXP_FLAG_NO_HOST_ATOMICS = 1 << 1,
        ZE_MEMORY_ATOMIC_ATTR_EXP_FLAG_HOST_ATOMICS = 1 << 2,
        ZE_MEMORY_ATOMIC_ATTR_EXP_FLAG_NO_DEVICE_ATOMICS = 1 << 3,
        ZE_MEMORY_ATOMIC_ATTR_EXP_FLAG_DEVICE_ATOMICS = 1 << 4,
        ZE_MEMORY_ATOMIC_ATTR_EXP_FLAG_NO_SYSTEM_ATOMICS = 1 << 5,
        ZE_MEMORY_ATOMIC_ATTR_EXP_FLAG_SYSTEM_ATOMICS = 1 << 6,
    }
}

plain! {
    /// One part of an allocation that was divided.
    ze_sub_allocation_t {
        base: *mut c_void,
        size: usize,
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
    /// Whether memory is to be compressed.
    ze_memory_compression_hints_ext_desc_t: ZE_STRUCTURE_TYPE_MEMORY_COMPRESSION_HINTS_EXT_DESC {
        pNext: *const c_void,
        flags: ze_memory_compression_hints_ext_flags_t,
    }
    /// Memory for ray tracing.
    ze_raytracing_mem_alloc_ext_desc_t: ZE_STRUCTURE_TYPE_RAYTRACING_MEM_ALLOC_EXT_DESC {
        pNext: *const c_void,
        flags: ze_raytracing_mem_alloc_ext_flags_t,
    }
    /// The parts of an allocation that was divided.
    ze_memory_sub_allocations_exp_properties_t: ZE_STRUCTURE_TYPE_MEMORY_SUB_ALLOCATIONS_EXP_PROPERTIES {
        pNext: *mut c_void,
        pCount: *mut u32,
        pSubAllocations: *mut ze_sub_allocation_t,
    }
}
