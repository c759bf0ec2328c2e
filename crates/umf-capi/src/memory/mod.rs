//! Memory by its address: which pool it is from, its handles for other processes, what is open
//! here, its properties.

mod ipc;
mod opened;
pub(crate) mod owners;
mod properties;

pub(crate) use ipc::provider_handle;
pub(crate) use ipc::provider_handle::importer_of;
pub(crate) use opened::close_all;
pub(crate) use properties::{CONTEXT, DEVICE, POINTER_TYPE};
