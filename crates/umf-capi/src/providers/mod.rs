//! The providers of this library, and the settings of those that it has no driver for.

mod cuda;
mod devdax;
mod file;
mod fixed;
mod level_zero;
mod os;

pub(crate) use os::{Params, Partition, mode, of_nodes, umfOsMemoryProviderOps};
