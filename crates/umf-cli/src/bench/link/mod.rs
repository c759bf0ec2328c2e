//! `umf bench link`: messages between two processes, by size and engine, beside what the machine can do at all.

mod peer;
mod plot;
mod raw;
mod rows;

pub(super) use peer::serve;
pub(super) use rows::measure;
