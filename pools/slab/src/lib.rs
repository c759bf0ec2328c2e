//! The slab pool of umf: blocks of any size out of regions of a provider, with all metadata out of
//! band.
//!
//! The pool writes nothing into the memory, which may belong to a device. It does not use the
//! global allocator, so it may be the global allocator.
//!
//! # How it is built
//!
//! ```text
//!            allocate                                            free
//!               |                                                 |
//!   front    [heap of the thread: a bin per class]     [lookaside: its own blocks]
//!               |         no locks: critical section            |
//!               |                                               | blocks of other owners,
//!               | refill                                        | by batches of addresses
//!   middle   [central: slabs per small class]    [inboxes of the owners; transfer cache of large blocks]
//!               |                                               |
//!               | new slab, new large block                     | merge
//!   back     [extents: two-level segregated fit over units of 4 KiB]
//!               |                                               |
//!            [regions of some MiB, within the limits]   <----   purge policy, trim
//!               |
//!            provider
//! ```
//!
//! **Classes.** A block below 64 KiB comes from a slab of its size class (eight classes per
//! doubling). A larger one is an extent of its own, cached by class too. A request above
//! [`SlabSettings::max_poolable_size`] is a region of its own.
//!
//! **Front.** Each thread has a heap with a bin of free blocks per class, so that the fast paths
//! take no lock. Allocating pops an entry, stores one state byte and counts. Freeing finds the
//! block through the lookaside cache, or through the tracker's map and one multiplication, clears
//! its live bit and pushes an entry. The state byte tells a second free and an exported block.
//! Limits, traces and forks of shared memory are on slow paths, behind one word of slow-path flags.
//!
//! **Owners.** A slab has an owner: the thread that allocates from it. So two threads do not write
//! the states of neighbouring blocks. The owner frees its blocks without an atomic exchange.
//! Another thread marks a block as freed and sends its address to the owner, in a batch: see
//! `remote`.
//!
//! **Large blocks** are cached in the same way, whole and by class. They are merged with the free
//! extents around them when a thread caches too much, when no extent is long enough, and when the
//! pool is trimmed. The larger the pool, the smaller the part of it that is cached.
//!
//! # The fast paths
//!
//! From the block types of the `umf` crate to the entry of the block; all of it is inlined:
//!
//! ```text
//! umf::Pool::allocate -> umf_core::pool::allocate -> Pool::allocate_fast -> SlabPool::allocate_fast
//!     -> Bin::pop, within the section that Heaps::enter_fast enters
//! umf::Block::drop    -> umf_core::pool::free     -> Pool::free_fast     -> SlabPool::free_owned
//!     -> SlabPool::push_owned -> Bin::push_at
//! ```
//!
//! | module | part |
//! |---|---|
//! | `types` | the data types on one page: read this first |
//! | `pool` | [`SlabPool`]: the layers, put together |
//! | `allocate`, `free` | the two paths through the layers |
//! | `heaps`, `heap` | front: the heaps of all threads, with their bins and lookaside caches |
//! | `section`, `bias` | the critical section of a heap, ownership bias, and how threads revoke them |
//! | `remote`, `collect` | remote frees: small blocks freed by another thread than their owner |
//! | `central`, `transfer` | middle: slabs; large blocks between threads |
//! | `regions`, `extents` | back: regions of the provider, and extents in them |
//! | `metadata`, `span`, `state` | from an address to a block and its state byte; records |
//! | `classes`, `settings` | size classes; [`SlabSettings`] |
//! | `purge` | automatic release by bytes and by age, the background purger, trim |
//! | `deferred` | deferred frees: blocks that other processes or devices still use |
//! | `inspect` | statistics, maps, live blocks, traces |
//! | `registry` | ends of threads, forks, static pools |
//!
//! # Forks
//!
//! Over private memory, a pool works in a forked child, but the free blocks in the heaps of the
//! parent's other threads are lost to the child. Over shared memory, the pool is frozen in the
//! child: allocating is an error, and freeing does nothing.

mod allocate;
mod bias;
mod central;
mod classes;
mod collect;
mod deferred;
mod extents;
mod free;
mod heap;
mod heaps;
mod inspect;
mod metadata;
mod pool;
mod purge;
mod regions;
mod registry;
mod remote;
mod section;
mod settings;
mod span;
mod state;
mod transfer;
mod types;

pub use pool::SlabPool;
pub use settings::SlabSettings;
pub use umf_core::limit::SharedLimit;
pub use umf_core::limit::SharedLimitRef;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
