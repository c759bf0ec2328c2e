//! The providers of this library.

mod cuda;
mod device;
mod level_zero;
mod os;
mod ranges;

pub(crate) use os::{Params, Partition, mode, of_nodes, umfOsMemoryProviderOps};
