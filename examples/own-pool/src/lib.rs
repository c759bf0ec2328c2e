//! A memory pool for umf, as you would write it in your own repository. It depends on `umf-core`,
//! on `umf-runtime`, and on `umf-sync` for its lock.
//!
//! [`ClassPool`] rounds sizes up to powers of two, and divides regions into blocks of one size. A
//! large block is a region of its own. One lock protects everything. It is slower than the slab
//! pool, and a tenth of its length.
//!
//! What is worth copying:
//!
//! - Regions are allocated through an [`umf_runtime::Upstream`], which tracks them, retires exports
//!   of regions, and freezes shared memory in a forked child.
//! - Nothing is written into the memory, because it may be device memory.
//! - A foreign, interior or twice freed address is an error that changes nothing.
//! - The free of an exported block is announced before the block is reused.
//! - A freed block that other processes have open is held by the upstream, and returns through
//!   `reclaim`.
//! - The lock survives a fork, and the provider is called under it.
//! - One line in `tests/conformance.rs` runs the conformance suite.
//!
//! For use in `umf.toml`, a program implements `umf_core::PoolFactory` and registers it with
//! `umf::registry`. The metadata uses the global allocator, so the pool cannot be the global
//! allocator.

mod pool;
mod slab;
mod slabs;

pub use pool::ClassPool;
