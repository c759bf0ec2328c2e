//! Suballocation of regions from a range of addresses or of a file. For providers.
//!
//! | type | content |
//! |---|---|
//! | [`Suballocator`] | a thread-safe suballocator: the two below behind one lock |
//! | [`FreeRanges`] | the free ranges: best fit, coalesced with their neighbours when freed |
//! | [`RegionTable`] | the live regions by address, each with a value of the provider |
//! | [`NodeArena`] | tree nodes at stable addresses, in metadata mappings |
//!
//! Nothing here uses the global allocator.

mod free_ranges;
mod node_arena;
mod region_table;
mod suballocator;

pub use free_ranges::FreeRanges;
pub use node_arena::NodeArena;
pub use region_table::RegionTable;
pub use suballocator::Suballocator;
