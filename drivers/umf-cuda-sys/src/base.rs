//! Devices, contexts, streams and events.

use core::ffi::c_int;

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
