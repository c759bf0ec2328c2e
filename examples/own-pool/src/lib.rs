//! A memory pool for umf in a repository of its own. It depends on `umf-core`, on `umf-runtime`,
//! and on `umf-sync` for its lock.
//!
//! [`ClassPool`] rounds sizes up to powers of two, and divides regions into blocks of one size. A
//! large block is a region of its own. One lock protects all slabs. The pool is slower than the
//! slab pool, and has a tenth of its code.
//!
//! Points to copy:
//!
//! - Regions are allocated through an [`umf_runtime::Upstream`], which tracks them, retires exports
//!   of regions, and freezes shared memory in a forked child.
//! - The pool writes no metadata into the memory, because it may be device memory.
//! - A foreign, interior or twice freed address is an error that changes no state.
//! - The free of an exported block is announced before the block is reused.
//! - The upstream defers the free of a block that other processes have open, and then calls
//!   `reclaim`.
//! - The lock survives a fork, and the provider is called under it.
//! - One line in `tests/conformance.rs` runs the conformance suite.
//!
//! For use in `umf.toml`, a program implements `umf_core::PoolFactory` and registers it with
//! `umf::registry`. The metadata uses the global allocator, so the pool cannot be the global
//! allocator.

mod pool;
mod slabs;

pub use pool::ClassPool;
