//! `libumf_proxy.so`: preloaded into any program, it replaces its `malloc` by a slab pool over host memory.
//!
//! ```text
//! LD_PRELOAD=/opt/umf/lib/libumf_proxy.so program
//! ```
//!
//! `docs/capi.md` says what `UMF_PROXY` can set. The crate has no Rust interface. The pool keeps all that it remembers in mappings of its own, and
//! so never comes back here; what the C library does on the pool's slow paths may, and is served apart.
//!
//! | module | idea |
//! |---|---|
//! | `calls` | the functions that are exported, and their common paths |
//! | `requests` | everything that is not common |
//! | `heap` | which pool serves, and how it is made |
//! | `early` | memory before there is a pool, and for what the pool's slow paths bring about |
//! | `busy` | a thread that is on such a path |
//! | `deferred` | what a busy thread frees |
//! | `moved` | large blocks that grow |
//! | `next` | the allocator that the program would have had |
//! | `interface` | what `libumf.so.1` is told of the heap, where both are in a process |
//! | `fork`, `shared`, `snapshot` | forks, and what they mean for shared memory |
//! | `settings`, `tell`, `errno` | `UMF_PROXY`, lines on standard error, `errno` |

#![cfg_attr(test, allow(dead_code, reason = "tests export nothing"))]

mod busy;
mod calls;
mod deferred;
mod early;
mod errno;
mod fork;
mod heap;
mod interface;
mod moved;
mod next;
mod requests;
mod settings;
mod shared;
mod snapshot;
mod tell;

/// What every block is aligned to.
const ALIGN: usize = 16;
