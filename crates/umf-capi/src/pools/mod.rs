//! The pools of this library.

pub(crate) mod disjoint;
mod jemalloc;
pub(crate) mod preloaded;
mod proxy;
mod scalable;
mod table;
