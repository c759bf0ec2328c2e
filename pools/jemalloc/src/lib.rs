//! The jemalloc pool of umf: [jemalloc](https://jemalloc.net) as the allocator, over any provider.
//!
//! A pool has arenas of jemalloc to itself, whose extents come from the pool's regions by extent hooks, and each thread a cache of
//! jemalloc's for it. jemalloc keeps its own records elsewhere; so the memory may be a device's.
//!
//! | what | where |
//! |---|---|
//! | the pool, its knobs | [`JemallocPool`], [`JemallocSettings`] |
//! | what is called of jemalloc | `je` |
//! | sizes of blocks | `classes` |
//! | which blocks are live | `blocks`: jemalloc does not check what it is given |
//! | regions, and which parts of them jemalloc has | `regions`, `room` |
//! | what jemalloc calls | `hooks` |
//! | addresses that stand for memory of other address spaces | `shadow` |
//! | threads, forks | `caches`, `visits`, `fork` |

mod blocks;
mod caches;
mod classes;
mod fork;
mod held;
mod hooks;
mod je;
mod leaks;
mod pool;
mod regions;
mod room;
mod settings;
mod shadow;
mod trim;

pub use pool::JemallocPool;
pub use settings::JemallocSettings;
