//! Pools behind C handles.

mod functions;
mod handle;
mod table;

pub(crate) use handle::Pool;
pub(crate) use table::{Functions, Initialize, PoolTable};
