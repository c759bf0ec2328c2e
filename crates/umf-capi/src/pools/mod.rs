//! The pools of this library behind the C interface.

pub(crate) mod disjoint;
mod jemalloc;
pub(crate) mod preloaded;
mod proxy;
mod scalable;
mod table;
