//! A memory pool for umf, as you would write it in your own repository: it depends on `umf-core`, and on `umf-sync` for its lock,
//! alone.
//!
//! [`ClassPool`] rounds sizes up to powers of two and cuts regions into blocks of one size each; what is large gets a
//! region of its own. One lock guards everything. It is no match for the slab pool, and a tenth of its length.
//!
//! What is worth copying:
//!
//! - Regions come through an [`umf_runtime::Upstream`], which tracks them; so addresses are found, exports of regions are
//!   retired, and a forked child is kept off shared memory.
//! - Nothing is written into the memory: it may be a device's.
//! - A foreign, interior or twice freed address is an error that changes nothing.
//! - A block that was exported is announced before anybody else can get it.
//! - One that other processes still have open is held by the upstream, and comes back through `reclaim`.
//! - The lock survives a fork, and the provider is called under it.
//! - One line, in `tests/conformance.rs`, has all of this checked.
//!
//! To have it named in `umf.toml`, a program implements `umf_core::PoolFactory` and registers it: `umf::registry`. Its books use the global allocator, so it
//! cannot be the global allocator itself.

mod books;
mod pool;
mod slab;

pub use pool::ClassPool;
