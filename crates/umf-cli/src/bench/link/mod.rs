//! `umf bench link`: messages between two processes, by size and engine, beside what the machine can do at all.

mod allreduce;
mod peer;
mod plot;
mod raw;
mod rows;
mod strided;

pub(super) use peer::serve;
pub(super) use rows::measure;
