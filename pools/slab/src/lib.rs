//! The slab pool of umf: fine-grained blocks, fast, with nothing written into the memory.
//!
//! # How it is built
//!
//! A block below 64 KiB comes from a *slab* of its size class (eight classes per doubling); a larger one from
//! an allocator of two-level segregated lists over units of 4 KiB, which also cuts the slabs out of *regions*. A
//! request above [`SlabSettings::max_poolable_size`] is a region of its own.
//!
//! In front of all that every thread keeps free blocks per class, so that the common path takes no lock. Allocating
//! pops, stores one state byte and counts. Freeing finds the block through what the thread remembers of its own slabs and large blocks, or through
//! the tracker's map, and one multiplication; takes the state byte (which tells a second free, and an exported block) and
//! pushes, whichever thread allocated it. What does not happen every time (limits, traces, forks of shared memory) stands behind one
//! gate, which the most common paths look at once. As long as only the thread that took a slab from the shared store frees its blocks, that needs no
//! atomic exchange; the first other one ends this, and nothing is different for the caller. Slabs are at home with
//! one thread, so that two threads do not write to the states of neighbouring blocks.
//!
//! What another thread allocated goes on its way in parcels: see `depot`. A thread keeps for itself what is at home with it.
//!
//! Large blocks are treated alike: freed ones are kept whole, by class, and are merged with what is free around them
//! when a thread keeps too much, when the pool lacks a range that is long enough, and when it is trimmed. How much is
//! kept shrinks as the pool grows.
//!
//! All metadata is out of band and in mappings of its own: nothing is ever written to the memory, which may
//! belong to a device, and the global allocator is not used, which the pool may be.
//!
//! | module | idea |
//! |---|---|
//! | `pool`, `paths` | [`SlabPool`]; the paths of allocating and freeing |
//! | `settings` | [`SlabSettings`] |
//! | `classes` | from a layout to a size class |
//! | `thread_cache`, `portion`, `caches`, `refill` | what a thread keeps, and its exchange with the rest |
//! | `near` | what a thread remembers of what is its own |
//! | `reach`, `trust` | what a thread does without locks or atomic exchanges, and how others come in; which large blocks that is for |
//! | `central`, `slab` | what threads share of a class, and its slabs |
//! | `depot`, `post` | blocks on their way from threads that free to threads that allocate |
//! | `blocks` | large blocks: cut, kept, merged |
//! | `large`, `regions` | the allocator of units, and where its regions come from |
//! | `span`, `state`, `lookup` | from an address to a block and its state |
//! | `ahead` | regions that are there before they are needed |
//! | `arena` | metadata of varying size |
//! | `policy`, `aging`, `tidier` | what goes back unasked, for its bytes or its age, and who looks |
//! | `release` | trimming and the end of a pool |
//! | `held`, `delayed` | blocks that are freed while other processes have them open, or until a completion is ready |
//! | `map` | what the regions look like, record by record |
//! | `statistics`, `asked` | counters, summed up when asked for; how much of the blocks is used |
//! | `fork`, `roster`, `fixed` | forks, the end of threads, pools that live for ever |
//!
//! # Forks
//!
//! Over private memory a pool goes on working in a forked child, except that what other threads of the parent
//! kept in their caches is lost to the child. Over shared memory it is frozen there: allocating is an error, and
//! freeing does nothing.

mod aging;
mod ahead;
mod asked;
mod blocks;
mod caches;
mod central;
mod classes;
mod delayed;
mod depot;
mod extents;
mod fixed;
mod held;
mod leaks;
mod lookup;
mod map;
mod metadata;
mod near;
mod paths;
mod policy;
mod pool;
mod portion;
mod post;
mod reach;
mod refill;
mod regions;
mod release;
mod roster;
mod settings;
mod slab;
mod span;
mod statistics;
mod thread_cache;
mod tidier;
mod trust;

pub use pool::SlabPool;
pub use settings::SlabSettings;
pub use umf_core::limit::SharedLimit;
pub use umf_core::limit::SharedLimitRef;
