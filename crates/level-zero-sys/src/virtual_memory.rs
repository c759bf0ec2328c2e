//! Reserved addresses and the physical memory that is mapped there.

use core::ffi::c_void;

enums! {
    /// What may be done at a page.
    ze_memory_access_attribute_t {
        ZE_MEMORY_ACCESS_ATTRIBUTE_NONE = 0,
        ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE = 1,
        ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY = 2,
    }
}

flags! {
    /// Where physical memory lies.
    ze_physical_mem_flags_t {
        ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_DEVICE = 1 << 0,
        ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_HOST = 1 << 1,
    }
}

chained! {
    /// How physical memory is to be made.
    ze_physical_mem_desc_t: ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC {
        pNext: *const c_void,
        flags: ze_physical_mem_flags_t,
        size: usize,
    }
    /// What physical memory is.
    ze_physical_mem_properties_t: ZE_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES {
        pNext: *mut c_void,
        id: u64,
        size: u64,
    }
}
