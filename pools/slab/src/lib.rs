//! The slab pool of umf: fine-grained blocks, fast, with nothing written into the memory.
//!
//! # How it is built
//!
//! A block of up to 32 KiB comes from a *slab* of its size class (eight classes per doubling); a larger one from
//! an allocator of two-level segregated lists over units of 4 KiB, which also cuts the slabs out of *regions*. A
//! request above [`SlabSettings::max_poolable_size`] is a region of its own.
//!
//! In front of all that every thread keeps a stack of free blocks per class, so that the common path takes no
//! lock and looks nothing up: allocating pops, stores one state byte and counts. Freeing finds the block
//! through the tracker's map and the slab's reciprocal, swaps the state byte (which tells a second free, and an
//! exported block) and pushes, whichever thread allocated it.
//!
//! All metadata is out of band and in mappings of its own: nothing is ever written to the memory, which may
//! belong to a device, and the global allocator is not used, which the pool may be.
//!
//! | module | idea |
//! |---|---|
//! | `pool` | [`SlabPool`], the common paths |
//! | `settings`, `limits` | [`SlabSettings`], [`SharedLimit`] |
//! | `classes` | from a layout to a size class |
//! | `thread_cache`, `refill` | what a thread keeps, and its exchange with the rest |
//! | `central`, `slab` | what threads share of a class, and its slabs |
//! | `large`, `regions` | the allocator of units, and where its regions come from |
//! | `span`, `state`, `lookup` | from an address to a block and its state |
//! | `arena` | metadata of varying size |
//! | `release` | trimming and the end of a pool |
//! | `held` | blocks that are freed while other processes have them open |
//! | `statistics` | counters, summed up when asked for |
//! | `fork`, `roster`, `fixed` | forks, the end of threads, pools that live for ever |
//!
//! # Forks
//!
//! Over private memory a pool goes on working in a forked child, except that what other threads of the parent
//! kept in their caches is lost to the child. Over shared memory it is frozen there: allocating is an error, and
//! freeing does nothing.

mod arena;
mod central;
mod classes;
mod fixed;
mod fork;
mod held;
mod large;
mod limits;
mod lookup;
mod pool;
mod refill;
mod regions;
mod release;
mod roster;
mod settings;
mod slab;
mod span;
mod state;
mod statistics;
mod thread_cache;

pub use limits::{SharedLimit, SharedLimitRef};
pub use pool::SlabPool;
pub use settings::SlabSettings;
