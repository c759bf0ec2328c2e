//! The providers of this library.

mod cuda;
mod devdax;
mod file;
mod fixed;
mod level_zero;
mod loaded;
mod memory_type;
mod os;

pub(crate) use os::{Params, Partition, mode, of_nodes, umfOsMemoryProviderOps};
