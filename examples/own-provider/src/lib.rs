//! A memory provider for umf, as you would write it in your own repository: it depends on `umf-core`, and on `umf-sync` for its
//! lock, alone.
//!
//! [`Arena`] reserves one large range of addresses when it is made, and hands out parts of it: all its memory lies
//! within a fixed distance, so that (for one) offsets of 32 bits reach everywhere. What is freed gives its pages back
//! to the system and its addresses to the arena.
//!
//! What is worth copying:
//!
//! - [`Provider`]'s mandatory methods are few; abilities (exporting, purging, ...) are traits of their own, which
//!   this one does not have.
//! - `unsafe impl Provider` is a promise, and the comment at it says why it is kept.
//! - Everything wrong that a caller can pass is an error and leaves the provider as it was.
//! - The books are kept beside the memory, never in it.
//! - The lock survives a fork: a child goes on allocating, whatever other threads of its parent were doing.
//! - One line, in `tests/conformance.rs`, has all of this checked.
//!
//! To have it named in `umf.toml`, a program registers it: `umf::registry::register_provider::<Arena>()`. Its key is
//! [`ArenaSettings`], with which `[provider.arena] size = "4GiB"` and `UMF_PROVIDER_ARENA_SIZE` work.

mod arena;
mod ranges;
mod settings;

pub use arena::Arena;
pub use settings::ArenaSettings;
