//! `libumf.so.1`: umf behind the C interface of the Unified Memory Framework (UMF), for programs
//! built for that library.
//!
//! The crate has no Rust interface. It exports the functions of the headers in `include/` under
//! their C names. `install` links them into a shared object with the soname and symbol versions of
//! the original library. `docs/capi.md` lists the functions and the differences from the original.
//!
//! | module | headers |
//! |---|---|
//! | `base` | `umf.h` |
//! | `provider` | `umf/memory_provider.h`, `umf/memory_provider_ops.h` |
//! | `pool` | `umf/memory_pool.h`, `umf/memory_pool_ops.h` |
//! | `memory` | `umf/ipc.h`, `umf/experimental/memory_properties.h`: memory by its address |
//! | `ctl` | `umf/experimental/ctl.h` |
//! | `placement` | `umf/experimental/memspace.h`, `memtarget.h`, `mempolicy.h` |
//! | `pools`, `providers` | `umf/pools/*.h`, `umf/providers/*.h`: the pools and providers of this
//! library |
//! | `boundary` | calls across the C boundary: result codes, pointers, panics |
//! | `last_error` | the last error of a thread; `umfrs.h`, with `memory` |
//! | `log` | `UMF_LOG` |

// Exported functions have their C names.
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
