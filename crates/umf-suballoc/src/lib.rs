//! Carving regions out of something larger: a range of addresses, or of a file. For providers.
//!
//! | what | where |
//! |---|---|
//! | which parts are free: best fit, joined with their neighbours when they become free | [`FreeRanges`] |
//! | which regions are live, and what a provider keeps of each | [`RegionTable`] |
//! | both behind one lock | [`Suballocator`] |
//! | places for tree nodes that do not move | [`NodeArena`] |
//!
//! Nothing in here uses the global allocator.

mod free_ranges;
mod node_arena;
mod region_table;
mod suballocator;

pub use free_ranges::FreeRanges;
pub use node_arena::NodeArena;
pub use region_table::RegionTable;
pub use suballocator::Suballocator;
