//! Pools behind C handles.

mod functions;
mod handle;
mod live;
mod ops;

pub(crate) use handle::Pool;
pub(crate) use ops::{Functions, Initialize, PoolTable};
