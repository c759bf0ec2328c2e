//! The providers of this library.

mod cuda;
mod device;
mod file;
mod level_zero;
mod os;

pub(crate) use file::file_imports;
pub(crate) use os::{Params, Partition, mode, of_nodes, umfOsMemoryProviderOps};
