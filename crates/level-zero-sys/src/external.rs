//! Memory that other interfaces and processes have: fds, and handles for other processes.

use core::ffi::{c_int, c_void};

use crate::device::ze_external_memory_type_flags_t;

flags! {
    /// How memory of another process is opened.
    ze_ipc_memory_flags_t {
        ZE_IPC_MEMORY_FLAG_BIAS_CACHED = 1 << 0,
        ZE_IPC_MEMORY_FLAG_BIAS_UNCACHED = 1 << 1,
    }
    /// Who may open a handle.
    ze_ipc_mem_handle_type_flags_t {
        ZE_IPC_MEM_HANDLE_TYPE_FLAG_DEFAULT = 1 << 0,
        ZE_IPC_MEM_HANDLE_TYPE_FLAG_FABRIC_ACCESSIBLE = 1 << 1,
    }
}

chained! {
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
    /// Memory to be made from a handle of Windows.
    ze_external_memory_import_win32_handle_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_WIN32 {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
        handle: *mut c_void,
        name: *const c_void,
    }
    /// Where the handle of Windows is written.
    ze_external_memory_export_win32_handle_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_WIN32 {
        pNext: *const c_void,
        flags: ze_external_memory_type_flags_t,
        handle: *mut c_void,
    }
    /// Memory of the process to be used by devices.
    ze_external_memmap_sysmem_ext_desc_t: ZE_STRUCTURE_TYPE_EXTERNAL_MEMMAP_SYSMEM_EXT_DESC {
        pNext: *const c_void,
        pSystemMemory: *mut c_void,
        size: u64,
    }
    /// Who may open a handle.
    ze_ipc_mem_handle_type_ext_desc_t: ZE_STRUCTURE_TYPE_IPC_MEM_HANDLE_TYPE_EXT_DESC {
        pNext: *const c_void,
        typeFlags: ze_ipc_mem_handle_type_flags_t,
    }
}
