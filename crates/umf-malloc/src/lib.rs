//! `libumf_proxy.so`: preloaded into a program, it replaces `malloc` with a slab pool over host
//! memory.
//!
//! ```text
//! LD_PRELOAD=/opt/umf/lib/libumf_proxy.so program
//! ```
//!
//! `docs/capi.md` lists the settings in `UMF_PROXY`. The crate has no Rust interface.
//!
//! The pool keeps its metadata in mappings of its own, so it never calls the exported `malloc`. The
//! C library, which the slow paths of the pool call, may do so: the bootstrap allocator serves
//! these requests.
//!
//! | module | part |
//! |---|---|
//! | `exports` | the exported C functions and their fast paths |
//! | `slow_path` | everything else that these functions do |
//! | `heap` | the pool that serves the process, and how it is created and replaced |
//! | `bootstrap` | the allocator for requests before there is a pool, and from inside its slow paths |
//! | `reentrancy` | the guard against entering the pool twice; deferred frees; `errno` |
//! | `next` | the next allocator in symbol order, usually that of the C library |
//! | `shared` | heaps in shared memory, and the snapshot that a forked child gets |
//! | `interface` | the table through which `libumf.so.1` of the same process uses the heap |
//! | `settings` | `UMF_PROXY`, and lines on standard error |

#![cfg_attr(test, allow(dead_code, reason = "tests export nothing"))]

mod bootstrap;
mod exports;
mod heap;
mod interface;
mod next;
mod reentrancy;
mod settings;
mod shared;
mod slow_path;

/// The alignment of every block.
const ALIGN: usize = 16;
