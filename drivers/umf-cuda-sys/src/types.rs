//! Types of the interface: devices, contexts, streams, events, memory and its IPC handles.

use core::ffi::{c_int, c_void};

/// A device, by its ordinal among those that the process sees.
pub type CUdevice = c_int;

/// An address of device-accessible memory. With unified addressing, it is an address of the
/// process.
pub type CUdeviceptr = u64;

handles! {
    /// A context: the owner of memory, streams and events on one device.
    CUcontext;
    /// A stream: executes submitted work in order.
    CUstream;
    /// A point in a stream.
    CUevent;
}

/// The globally unique id of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CUuuid {
    /// The 16 bytes.
    pub bytes: [u8; 16],
}

enums! {
    /// An attribute of a device.
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

/// Flag of `cuStreamCreate`: the stream does not synchronize with the default stream.
pub const CU_STREAM_NON_BLOCKING: u32 = 1;
/// Flag of `cuEventCreate`: the event records no times, which costs less.
pub const CU_EVENT_DISABLE_TIMING: u32 = 2;

/// A handle of physical memory.
pub type CUmemGenericAllocationHandle = u64;

/// An IPC handle of memory of `cuMemAlloc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUipcMemHandle {
    /// Bytes that only the driver interprets.
    pub reserved: [u8; 64],
}

/// A handle of physical memory for processes on this machine and on others of the same fabric.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemFabricHandle {
    /// Bytes that only the driver interprets.
    pub data: [u8; 64],
}

enums! {
    /// The kind of physical memory.
    CUmemAllocationType {
        CU_MEM_ALLOCATION_TYPE_INVALID = 0,
        CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    }

    /// The type of a handle of physical memory. A set of types is combined with `|`.
    CUmemAllocationHandleType {
        CU_MEM_HANDLE_TYPE_NONE = 0,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
        CU_MEM_HANDLE_TYPE_FABRIC = 8,
    }

    /// The type of a location.
    CUmemLocationType {
        CU_MEM_LOCATION_TYPE_INVALID = 0,
        CU_MEM_LOCATION_TYPE_DEVICE = 1,
        CU_MEM_LOCATION_TYPE_HOST = 2,
    }

    /// The access to memory.
    CUmemAccess_flags {
        CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
        CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    }

    /// The queried granularity of physical memory.
    CUmemAllocationGranularity_flags {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
    }

    /// An attribute of an address.
    CUpointer_attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT = 1,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
        CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    }

    /// The handle type of `cuMemGetHandleForAddressRange`.
    CUmemRangeHandleType {
        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
    }
}

/// The location of physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemLocation {
    /// Host or device.
    pub r#type: CUmemLocationType,
    /// The device's ordinal.
    pub id: c_int,
}

/// Further properties of physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemAllocationFlags {
    /// Whether it supports compressed data.
    pub compressionType: u8,
    /// Whether it supports GPUDirect RDMA.
    pub gpuDirectRDMACapable: u8,
    /// Usage hints.
    pub usage: u16,
    /// Reserved, zero.
    pub reserved: [u8; 4],
}

/// The properties of an allocation of physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// The kind of memory.
    pub r#type: CUmemAllocationType,
    /// The handle types in which it can be exported.
    pub requestedHandleTypes: CUmemAllocationHandleType,
    /// The location.
    pub location: CUmemLocation,
    /// Used on Windows only.
    pub win32HandleMetaData: *mut c_void,
    /// Further properties.
    pub allocFlags: CUmemAllocationFlags,
}

/// The access of a location to memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemAccessDesc {
    /// The location.
    pub location: CUmemLocation,
    /// Its access.
    pub flags: CUmemAccess_flags,
}

/// Flag of `cuMemAllocManaged`: accessible from every stream on every device.
pub const CU_MEM_ATTACH_GLOBAL: u32 = 1;
/// Flag of `cuMemHostAlloc`: pinned for every context.
pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 1;
/// Flag of `cuIpcOpenMemHandle`: enables peer access if the memory is on another device.
pub const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: u32 = 1;

const _: () = {
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(size_of::<CUipcMemHandle>() == 64);
};
