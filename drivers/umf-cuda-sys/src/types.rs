//! Devices, contexts, streams and events; memory, and what other processes need to open it.

use core::ffi::{c_int, c_void};

/// A device, by its place among those that the process sees.
pub type CUdevice = c_int;

/// An address of memory that devices reach; with unified addressing, one of the process's own.
pub type CUdeviceptr = u64;

handles! {
    /// What memory, streams and events of one device belong to.
    CUcontext;
    /// What is submitted to one is executed in order.
    CUstream;
    /// A point in a stream.
    CUevent;
}

/// What tells a device from all others, on any machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CUuuid {
    /// The 16 bytes.
    pub bytes: [u8; 16],
}

enums! {
    /// What can be asked about a device.
    CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
        CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
    }
}

/// For `cuStreamCreate`: does not wait for the default stream.
pub const CU_STREAM_NON_BLOCKING: u32 = 1;
/// For `cuEventCreate`: takes no times, which costs less.
pub const CU_EVENT_DISABLE_TIMING: u32 = 2;

/// Physical memory, without an address.
pub type CUmemGenericAllocationHandle = u64;

/// What another process needs to open memory of `cuMemAlloc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUipcMemHandle {
    /// Bytes that only the driver understands.
    pub reserved: [u8; 64],
}

/// What another process, on this machine or another of the same fabric, needs to open physical
/// memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemFabricHandle {
    /// Bytes that only the driver understands.
    pub data: [u8; 64],
}

enums! {
    /// How physical memory is made.
    CUmemAllocationType {
        CU_MEM_ALLOCATION_TYPE_INVALID = 0,
        CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    }

    /// The forms in which physical memory may be given to other processes; combined with `|` where
    /// it may be several.
    CUmemAllocationHandleType {
        CU_MEM_HANDLE_TYPE_NONE = 0,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
        CU_MEM_HANDLE_TYPE_FABRIC = 8,
    }

    /// What a place is a place of.
    CUmemLocationType {
        CU_MEM_LOCATION_TYPE_INVALID = 0,
        CU_MEM_LOCATION_TYPE_DEVICE = 1,
        CU_MEM_LOCATION_TYPE_HOST = 2,
    }

    /// What may be done at an address.
    CUmemAccess_flags {
        CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
        CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    }

    /// Which granularity of physical memory.
    CUmemAllocationGranularity_flags {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
    }

    /// What can be asked about an address.
    CUpointer_attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT = 1,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
        CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    }

    /// What `cuMemGetHandleForAddressRange` makes.
    CUmemRangeHandleType {
        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
    }
}

/// Where physical memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemLocation {
    /// Of what.
    pub r#type: CUmemLocationType,
    /// Which device.
    pub id: c_int,
}

/// What else is asked of physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemAllocationFlags {
    /// Whether it can hold compressed data.
    pub compressionType: u8,
    /// Whether other devices on the bus may reach it by themselves.
    pub gpuDirectRDMACapable: u8,
    /// What it is used for.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}

/// What physical memory should be like.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// How it is made.
    pub r#type: CUmemAllocationType,
    /// In which forms it may be given to other processes.
    pub requestedHandleTypes: CUmemAllocationHandleType,
    /// Where it is.
    pub location: CUmemLocation,
    /// For another system.
    pub win32HandleMetaData: *mut c_void,
    /// What else is asked.
    pub allocFlags: CUmemAllocationFlags,
}

/// What a place may do with memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemAccessDesc {
    /// The place.
    pub location: CUmemLocation,
    /// What it may do.
    pub flags: CUmemAccess_flags,
}

/// For `cuMemAllocManaged`: every device may use it.
pub const CU_MEM_ATTACH_GLOBAL: u32 = 1;
/// For `cuMemHostAlloc`: every context may use it.
pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 1;
/// For `cuIpcOpenMemHandle`: a device that is a peer may use it, too.
pub const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: u32 = 1;

const _: () = {
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(size_of::<CUipcMemHandle>() == 64);
};
