//! The jemalloc pool of umf: [jemalloc](https://jemalloc.net) as the allocator, over any provider.
//!
//! A pool has arenas of its own. Their extents come from the pool's regions, through jemalloc's
//! extent hooks. Each thread has a cache (`tcache`) for each pool that it uses. jemalloc keeps its
//! metadata elsewhere, so the memory may be that of a device.
//!
//! ```text
//!   allocate / free                pool
//!         |                          block states: which addresses are live blocks
//!         v
//!   jemalloc: tcache, arena
//!         |
//!         | extent hooks           hooks
//!         v
//!   free extents of the arena      extents
//!         |
//!         v
//!   regions of the provider        regions
//! ```
//!
//! | module | part |
//! |---|---|
//! | `pool` | [`JemallocPool`]: allocating and freeing blocks |
//! | `blocks` | block states: jemalloc does not check the addresses that it frees |
//! | `classes` | the size classes of jemalloc |
//! | `threads` | a cache of jemalloc and counters per thread; ends of threads; forks |
//! | `hooks`, `extents` | the extent hooks of an arena; its free extents |
//! | `regions` | regions from the provider, and what goes back to it |
//! | `shadow` | address ranges that stand for memory whose addresses jemalloc cannot use |
//! | `deferred` | blocks whose free waits; blocks that are live |
//! | `je` | the calls of jemalloc |
//! | `settings` | [`JemallocSettings`] |

mod blocks;
mod classes;
mod deferred;
mod extents;
mod hooks;
mod je;
mod pool;
mod regions;
mod settings;
mod shadow;
mod threads;

pub use pool::JemallocPool;
pub use settings::JemallocSettings;
