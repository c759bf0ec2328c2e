//! Memory, virtual and physical.

use core::ffi::c_void;

use crate::base::ze_ipc_mem_handle_t;
use crate::external::ze_ipc_memory_flags_t;
use crate::handles::{ze_context_handle_t, ze_device_handle_t, ze_physical_mem_handle_t};
use crate::memory::{
    ze_device_mem_alloc_desc_t, ze_host_mem_alloc_desc_t, ze_memory_allocation_properties_t,
    ze_memory_atomic_attr_exp_flags_t, ze_memory_free_ext_desc_t,
};
use crate::virtual_memory::{
    ze_memory_access_attribute_t, ze_physical_mem_desc_t, ze_physical_mem_properties_t,
};

tables! {
    /// Allocations, and handles of them.
    ze_mem_dditable_t from zeGetMemProcAddrTable {
        0 pfnAllocShared = zeMemAllocShared(hContext: ze_context_handle_t,
            device_desc: *const ze_device_mem_alloc_desc_t, host_desc: *const ze_host_mem_alloc_desc_t,
            size: usize, alignment: usize, hDevice: ze_device_handle_t, pptr: *mut *mut c_void);
        0 pfnAllocDevice = zeMemAllocDevice(hContext: ze_context_handle_t,
            device_desc: *const ze_device_mem_alloc_desc_t, size: usize, alignment: usize,
            hDevice: ze_device_handle_t, pptr: *mut *mut c_void);
        0 pfnAllocHost = zeMemAllocHost(hContext: ze_context_handle_t,
            host_desc: *const ze_host_mem_alloc_desc_t, size: usize, alignment: usize, pptr: *mut *mut c_void);
        0 pfnFree = zeMemFree(hContext: ze_context_handle_t, ptr: *mut c_void);
        0 pfnGetAllocProperties = zeMemGetAllocProperties(hContext: ze_context_handle_t, ptr: *const c_void,
            pMemAllocProperties: *mut ze_memory_allocation_properties_t, phDevice: *mut ze_device_handle_t);
        0 pfnGetAddressRange = zeMemGetAddressRange(hContext: ze_context_handle_t, ptr: *const c_void,
            pBase: *mut *mut c_void, pSize: *mut usize);
        0 pfnGetIpcHandle = zeMemGetIpcHandle(hContext: ze_context_handle_t, ptr: *const c_void,
            pIpcHandle: *mut ze_ipc_mem_handle_t);
        0 pfnOpenIpcHandle = zeMemOpenIpcHandle(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            handle: ze_ipc_mem_handle_t, flags: ze_ipc_memory_flags_t, pptr: *mut *mut c_void);
        0 pfnCloseIpcHandle = zeMemCloseIpcHandle(hContext: ze_context_handle_t, ptr: *const c_void);
        3 pfnFreeExt = zeMemFreeExt(hContext: ze_context_handle_t,
            pMemFreeDesc: *const ze_memory_free_ext_desc_t, ptr: *mut c_void);
        6 pfnPutIpcHandle = zeMemPutIpcHandle(hContext: ze_context_handle_t, handle: ze_ipc_mem_handle_t);
        9 pfnGetPitchFor2dImage = zeMemGetPitchFor2dImage;
        15 pfnGetIpcHandleWithProperties = zeMemGetIpcHandleWithProperties(hContext: ze_context_handle_t,
            ptr: *const c_void, pNext: *mut c_void, pIpcHandle: *mut ze_ipc_mem_handle_t);
    }
    /// Handles and fds of each other; atomic access.
    ze_mem_exp_dditable_t from zeGetMemExpProcAddrTable {
        6 pfnGetIpcHandleFromFileDescriptorExp = zeMemGetIpcHandleFromFileDescriptorExp(hContext: ze_context_handle_t,
            handle: u64, pIpcHandle: *mut ze_ipc_mem_handle_t);
        6 pfnGetFileDescriptorFromIpcHandleExp = zeMemGetFileDescriptorFromIpcHandleExp(hContext: ze_context_handle_t,
            ipcHandle: ze_ipc_mem_handle_t, pHandle: *mut u64);
        7 pfnSetAtomicAccessAttributeExp = zeMemSetAtomicAccessAttributeExp(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, ptr: *const c_void, size: usize,
            attr: ze_memory_atomic_attr_exp_flags_t);
        7 pfnGetAtomicAccessAttributeExp = zeMemGetAtomicAccessAttributeExp(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, ptr: *const c_void, size: usize,
            pAttr: *mut ze_memory_atomic_attr_exp_flags_t);
    }
    /// Physical memory.
    ze_physical_mem_dditable_t from zeGetPhysicalMemProcAddrTable {
        0 pfnCreate = zePhysicalMemCreate(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            desc: *mut ze_physical_mem_desc_t, phPhysicalMemory: *mut ze_physical_mem_handle_t);
        0 pfnDestroy = zePhysicalMemDestroy(hContext: ze_context_handle_t,
            hPhysicalMemory: ze_physical_mem_handle_t);
        15 pfnGetProperties = zePhysicalMemGetProperties(hContext: ze_context_handle_t,
            hPhysicalMem: ze_physical_mem_handle_t, pMemProperties: *mut ze_physical_mem_properties_t);
    }
    /// Reserved addresses.
    ze_virtual_mem_dditable_t from zeGetVirtualMemProcAddrTable {
        0 pfnReserve = zeVirtualMemReserve(hContext: ze_context_handle_t, pStart: *const c_void, size: usize,
            pptr: *mut *mut c_void);
        0 pfnFree = zeVirtualMemFree(hContext: ze_context_handle_t, ptr: *const c_void, size: usize);
        0 pfnQueryPageSize = zeVirtualMemQueryPageSize(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, size: usize, pagesize: *mut usize);
        0 pfnMap = zeVirtualMemMap(hContext: ze_context_handle_t, ptr: *const c_void, size: usize,
            hPhysicalMemory: ze_physical_mem_handle_t, offset: usize, access: ze_memory_access_attribute_t);
        0 pfnUnmap = zeVirtualMemUnmap(hContext: ze_context_handle_t, ptr: *const c_void, size: usize);
        0 pfnSetAccessAttribute = zeVirtualMemSetAccessAttribute(hContext: ze_context_handle_t,
            ptr: *const c_void, size: usize, access: ze_memory_access_attribute_t);
        0 pfnGetAccessAttribute = zeVirtualMemGetAccessAttribute(hContext: ze_context_handle_t,
            ptr: *const c_void, size: usize, access: *mut ze_memory_access_attribute_t, outSize: *mut usize);
    }
}
