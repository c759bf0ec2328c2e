//! Carving regions out of something larger: a range of addresses, or of a file. For providers.
//!
//! | what | where |
//! |---|---|
//! | which parts are free: best fit, joined with their neighbours when they become free | [`Ranges`] |
//! | the live regions too, so that only they are freed, split and merged | [`Carver`] |
//! | places for tree nodes that do not move | [`Nodes`] |
//!
//! [`Ranges`] and [`Nodes`] do not use the global allocator; [`Carver`] does.

mod carver;
mod nodes;
mod ranges;

pub use carver::Carver;
pub use nodes::Nodes;
pub use ranges::Ranges;
