//! Drivers: starting them, what they are, what they add to the specification.

use core::ffi::{c_char, c_void};

/// Bytes of a driver's identifier.
pub const ZE_MAX_DRIVER_UUID_SIZE: usize = 16;
/// Bytes of an extension's name, with the zero at its end.
pub const ZE_MAX_EXTENSION_NAME: usize = 256;

flags! {
    /// Which drivers `zeInit` starts.
    ze_init_flags_t {
        ZE_INIT_FLAG_GPU_ONLY = 1 << 0,
        ZE_INIT_FLAG_VPU_ONLY = 1 << 1,
    }
    /// Which drivers `zeInitDrivers` starts.
    ze_init_driver_type_flags_t {
        ZE_INIT_DRIVER_TYPE_FLAG_GPU = 1 << 0,
        ZE_INIT_DRIVER_TYPE_FLAG_NPU = 1 << 1,
    }
    /// What a driver can share with other processes.
    ze_ipc_property_flags_t {
        ZE_IPC_PROPERTY_FLAG_MEMORY = 1 << 0,
        ZE_IPC_PROPERTY_FLAG_EVENT_POOL = 1 << 1,
        ZE_IPC_PROPERTY_FLAG_FABRIC_ACCESSIBLE = 1 << 2,
    }
    /// When `zeMemFreeExt` gives memory back.
    ze_driver_memory_free_policy_ext_flags_t {
        ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE = 1 << 0,
        ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE = 1 << 1,
    }
    /// How a driver's handles carry its function tables.
    ze_driver_ddi_handle_ext_flags_t {
        ZE_DRIVER_DDI_HANDLE_EXT_FLAG_DDI_HANDLE_EXT_SUPPORTED = 1 << 0,
    }
}

plain! {
    /// A driver's identifier.
    ze_driver_uuid_t {
        id: [u8; ZE_MAX_DRIVER_UUID_SIZE],
    }
    /// An extension that a driver has.
    ze_driver_extension_properties_t {
        name: [c_char; ZE_MAX_EXTENSION_NAME],
        version: u32,
    }
}

chained! {
    /// Asks `zeInitDrivers` for drivers of some types.
    ze_init_driver_type_desc_t: ZE_STRUCTURE_TYPE_INIT_DRIVER_TYPE_DESC {
        pNext: *const c_void,
        flags: ze_init_driver_type_flags_t,
    }
    /// Identifier and version of a driver.
    ze_driver_properties_t: ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES {
        pNext: *mut c_void,
        uuid: ze_driver_uuid_t,
        driverVersion: u32,
    }
    /// What a driver can share with other processes.
    ze_driver_ipc_properties_t: ZE_STRUCTURE_TYPE_DRIVER_IPC_PROPERTIES {
        pNext: *mut c_void,
        flags: ze_ipc_property_flags_t,
    }
    /// The policies that `zeMemFreeExt` knows.
    ze_driver_memory_free_ext_properties_t: ZE_STRUCTURE_TYPE_DRIVER_MEMORY_FREE_EXT_PROPERTIES {
        pNext: *mut c_void,
        freePolicies: ze_driver_memory_free_policy_ext_flags_t,
    }
    /// Whether handles carry the driver's function tables.
    ze_driver_ddi_handles_ext_properties_t: ZE_STRUCTURE_TYPE_DRIVER_DDI_HANDLES_EXT_PROPERTIES {
        pNext: *mut c_void,
        flags: ze_driver_ddi_handle_ext_flags_t,
    }
}
