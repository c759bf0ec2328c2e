//! The jemalloc pool of umf: [jemalloc](https://jemalloc.net) as the allocator, over any provider.
//!
//! A pool has its own arenas. Their extents are in the pool's regions: jemalloc allocates them
//! through its extent hooks. Each thread has a cache (`tcache`) for each pool that it uses.
//! jemalloc does not store metadata in the regions, so they may be memory of a device.
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
//! | `pool` | [`JemallocPool`]: allocating and freeing blocks; [`JemallocSettings`] |
//! | `blocks` | block states: jemalloc does not check the addresses that it frees |
//! | `classes` | the size classes of jemalloc |
//! | `threads` | a cache of jemalloc and counters per thread; ends of threads; forks |
//! | `hooks`, `extents` | the extent hooks of an arena; its free extents |
//! | `regions` | regions from the provider; returning free ones |
//! | `shadow` | the addresses that jemalloc uses; shadows of memory at other addresses |
//! | `deferred` | deferred frees; reports of live blocks |
//! | `je` | the calls of jemalloc |

mod blocks;
mod classes;
mod deferred;
mod extents;
mod hooks;
mod je;
mod pool;
mod regions;
mod shadow;
mod threads;

pub use pool::{JemallocPool, JemallocSettings};
