//! Carving regions out of something larger: a range of addresses, or of a file. For providers.
//!
//! | what | where |
//! |---|---|
//! | which parts are free: best fit, joined with their neighbours when they become free | [`Ranges`] |
//! | which regions are live, and what a provider keeps of each | [`Regions`] |
//! | both behind one lock | [`Carver`] |
//! | places for tree nodes that do not move | [`Nodes`] |
//!
//! Nothing in here uses the global allocator.

mod carver;
mod nodes;
mod ranges;
mod regions;

pub use carver::Carver;
pub use nodes::Nodes;
pub use ranges::Ranges;
pub use regions::Regions;
