//! Memory by its address: the owning pool, IPC handles, openings of other processes' memory, and
//! properties.

mod destroyed_handles;
mod ipc;
mod openings;
pub(crate) mod owners;
mod properties;

pub(crate) use ipc::{OwnImporters, provider_handle};
pub(crate) use openings::close_all;
pub(crate) use properties::{CONTEXT, DEVICE, POINTER_TYPE};
