//! What several parts of the interface share: truth values, identifiers, handles for other processes.

use core::ffi::{c_char, c_void};

use crate::structure_type::ze_structure_type_t;

/// True (not 0) or false (0).
pub type ze_bool_t = u8;
/// Bytes of a handle for other processes.
pub const ZE_MAX_IPC_HANDLE_SIZE: usize = 64;
/// Bytes of a [`ze_uuid_t`].
pub const ZE_MAX_UUID_SIZE: usize = 16;

plain! {
    /// Names memory in another process. The bytes belong to the driver.
    ze_ipc_mem_handle_t {
        data: [c_char; ZE_MAX_IPC_HANDLE_SIZE],
    }
    /// Names an event pool in another process. The bytes belong to the driver.
    ze_ipc_event_pool_handle_t {
        data: [c_char; ZE_MAX_IPC_HANDLE_SIZE],
    }
    /// Names a counter-based event in another process. The bytes belong to the driver.
    ze_ipc_event_counter_based_handle_t {
        data: [c_char; ZE_MAX_IPC_HANDLE_SIZE],
    }
    /// A universally unique identifier.
    ze_uuid_t {
        id: [u8; ZE_MAX_UUID_SIZE],
    }
    /// The beginning of every properties structure: what a walk along `pNext` reads.
    ze_base_properties_t {
        stype: ze_structure_type_t,
        pNext: *mut c_void,
    }
    /// The beginning of every descriptor: what a walk along `pNext` reads.
    ze_base_desc_t {
        stype: ze_structure_type_t,
        pNext: *const c_void,
    }
}
