//! The pools of this library.

pub(crate) mod disjoint;
mod jemalloc;
mod last_error;
mod proxy;
mod scalable;
