//! A memory provider for umf in a repository of its own. It depends on `umf-core`, and on
//! `umf-sync` for its lock.
//!
//! [`Arena`] reserves one large range of addresses when it is created, and allocates regions in it.
//! All regions lie within that range, so that 32-bit offsets can address them. Freeing returns the
//! pages to the system and the addresses to the arena.
//!
//! [`SharedArena`] does the same in a memory file, whose regions other processes can open: it
//! implements [`Export`](umf_core::Export), and [`SharedArenaImport`] implements
//! [`Import`](umf_core::Import).
//!
//! Points to copy:
//!
//! - [`Provider`](umf_core::Provider) has few mandatory methods. Exporting, purging and other
//!   abilities are separate traits, which [`Arena`] does not implement.
//! - An importer checks the descriptor before it maps it: the request came from another process.
//! - A forked child must not allocate shared memory, because its parent allocates it too.
//! - The `SAFETY` comment of `unsafe impl Provider` states why the contract holds.
//! - An invalid argument is an error, and leaves the provider unchanged.
//! - Metadata is kept outside of the memory.
//! - The lock survives a fork: a child can allocate, even if another thread of the parent held the
//!   lock.
//! - One line in `tests/conformance.rs` runs the conformance suite for each provider.
//!   `tests/two_processes.rs` opens a block in another process.
//!
//! For use in `umf.toml`, a program registers it: `umf::registry::register_provider::<Arena>()`.
//! Its keys are the fields of [`ArenaSettings`]: `[provider.arena] size = "4GiB"`, or
//! `UMF_PROVIDER_ARENA_SIZE`.

mod arena;
mod ranges;
mod shared;

pub use arena::{Arena, ArenaSettings};
pub use shared::{SharedArena, SharedArenaImport, SharedArenaSettings};
