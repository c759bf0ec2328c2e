//! The pools of this library.

pub(crate) mod disjoint;
mod jemalloc;
pub(crate) mod last_error;
mod proxy;
mod scalable;
mod whose;
