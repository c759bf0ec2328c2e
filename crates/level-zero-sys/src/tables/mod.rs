//! The tables of functions. A number before a member is the minor version of the specification that brought it.

pub mod execution;
pub mod memory;
pub mod other;
pub mod setup;
pub mod synchronization;
