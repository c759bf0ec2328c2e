//! Types of the interface: devices, contexts, streams, events, memory and its IPC handles.

use core::ffi::{c_int, c_void};

use crate::CUresult;

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
    /// A pool of stream-ordered memory.
    CUmemoryPool;
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
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
        CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
        CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
        CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78,
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
        CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
        CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED = 142,
        CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED = 144,
    }
}

/// The stream handle of the legacy default stream, as null is.
pub const CU_STREAM_LEGACY: usize = 1;
/// The stream handle of the calling thread's default stream.
pub const CU_STREAM_PER_THREAD: usize = 2;
/// Flag of `cuStreamCreate`: the stream does not synchronize with the default stream.
pub const CU_STREAM_NON_BLOCKING: u32 = 1;
/// Flag of `cuEventCreate`: the event records no times, which costs less.
pub const CU_EVENT_DISABLE_TIMING: u32 = 2;
/// Flag of `cuEventCreate`: the event has an IPC handle. Requires [`CU_EVENT_DISABLE_TIMING`].
pub const CU_EVENT_INTERPROCESS: u32 = 4;

/// A function that `cuStreamAddCallback` calls in the order of a stream.
pub type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;
/// A function that `cuLaunchHostFunc` calls in the order of a stream.
pub type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;

/// A handle of physical memory.
pub type CUmemGenericAllocationHandle = u64;

/// An IPC handle of memory of `cuMemAlloc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUipcMemHandle {
    /// Bytes that only the driver interprets.
    pub reserved: [u8; 64],
}

/// An IPC handle of an event with [`CU_EVENT_INTERPROCESS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUipcEventHandle {
    /// Bytes that only the driver interprets.
    pub reserved: [u8; 64],
}

/// A pointer of a memory pool, exported for processes that have imported the pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemPoolPtrExportData {
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
        CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
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
        CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
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
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
        CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
        CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
        CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
        CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
        CU_POINTER_ATTRIBUTE_MAPPED = 13,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,
        CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21,
    }

    /// The kind of memory at an address: the value of `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
    CUmemorytype {
        CU_MEMORYTYPE_HOST = 1,
        CU_MEMORYTYPE_DEVICE = 2,
    }

    /// An attribute of a memory pool: 64-bit numbers of bytes, and 32-bit switches.
    CUmemPool_attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
    }

    /// Advice about managed memory.
    CUmem_advise {
        CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
        CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
        CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
        CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
        CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
    }

    /// An attribute of managed memory.
    CUmem_range_attribute {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1,
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2,
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3,
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4,
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE = 5,
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID = 6,
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE = 7,
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID = 8,
    }

    /// The result of `cuGetProcAddress`, when it returns no address.
    CUdriverProcAddressQueryResult {
        CU_GET_PROC_ADDRESS_SUCCESS = 0,
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
    }

    /// Whether a stream captures its work into a graph.
    CUstreamCaptureStatus {
        CU_STREAM_CAPTURE_STATUS_NONE = 0,
        CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
        CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
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

/// The properties of a memory pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    /// The kind of memory.
    pub allocType: CUmemAllocationType,
    /// The handle types in which it can be exported.
    pub handleTypes: CUmemAllocationHandleType,
    /// The location.
    pub location: CUmemLocation,
    /// Used on Windows only.
    pub win32SecurityAttributes: *mut c_void,
    /// The maximum size in bytes; 0 is the driver's default.
    pub maxSize: usize,
    /// Usage hints.
    pub usage: u16,
    /// Reserved, zero.
    pub reserved: [u8; 54],
}

impl Default for CUmemPoolProps {
    fn default() -> Self {
        Self {
            allocType: CU_MEM_ALLOCATION_TYPE_INVALID,
            handleTypes: CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation::default(),
            win32SecurityAttributes: core::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
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
/// Flag of `cuMemHostAlloc`: mapped for devices.
pub const CU_MEMHOSTALLOC_DEVICEMAP: u32 = 2;
/// Flag of `cuMemHostRegister`: mapped for devices.
pub const CU_MEMHOSTREGISTER_DEVICEMAP: u32 = 2;
/// Flag of `cuIpcOpenMemHandle`: enables peer access if the memory is on another device.
pub const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: u32 = 1;

const _: () = {
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(size_of::<CUipcMemHandle>() == 64);
    assert!(size_of::<CUmemPoolProps>() == 88);
};
