//! `libumf.so.1`: umf behind the C interface of the Unified Memory Framework, for programs that
//! were built for that.
//!
//! This crate has no Rust interface: what it exports are the functions of the headers in
//! `include/`, with C names. `install` links them into a shared object with the original's soname
//! and symbol versions. `docs/capi.md` says what there is, and what differs from the original.
//!
//! | module | headers |
//! |---|---|
//! | `base` | `umf.h` |
//! | `provider` | `umf/memory_provider.h`, `umf/memory_provider_ops.h` |
//! | `pool` | `umf/memory_pool.h`, `umf/memory_pool_ops.h` |
//! | `memory` | `umf/ipc.h`, `umf/experimental/memory_properties.h`: memory by its address |
//! | `ctl` | `umf/experimental/ctl.h` |
//! | `placement` | `umf/experimental/memspace.h`, `memtarget.h`, `mempolicy.h` |
//! | `pools`, `providers` | `umf/pools/*.h`, `umf/providers/*.h` |
//! | `boundary` | what C promises, and how calls end |
//! | `last_error` | what failed last in a thread |
//! | `log` | `UMF_LOG` |

// The functions have the names that C knows.
#![allow(non_snake_case)]

mod base;
mod boundary;
mod ctl;
mod last_error;
mod log;
mod memory;
mod placement;
mod pool;
mod pools;
mod provider;
mod providers;
