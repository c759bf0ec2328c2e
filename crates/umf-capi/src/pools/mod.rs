//! The pools of this library.

pub(crate) mod disjoint;
mod jemalloc;
pub(crate) mod kept;
pub(crate) mod last_error;
pub(crate) mod preloaded;
mod proxy;
mod scalable;
mod whose;
