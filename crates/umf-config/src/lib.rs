//! Settings of umf: files, the environment, the program, and where each value came from.
//!
//! This crate knows no key. A [`Schema`] says which sections there are, from structs that
//! [`umf_core::settings!`] makes; the crate `umf` has the schema of umf, with the kinds of provider and
//! pool that the program registered. A [`Loader`] reads all sources, checks each key of each source, and
//! merges them. [`Loaded`] then gives typed values that remember where they came from.
//!
//! Wrong keys and values are an [`Error`] that begins with the source (`umf.toml:14`, the name of a
//! variable) and says what would be valid. What is merely odd is a [`Warning`]. This crate prints
//! nothing and never panics on what comes from outside.
//!
//! ```
//! use umf_config::{Context, Loader, Schema};
//!
//! umf_core::settings! {
//!     /// The section `[ipc]` of this example.
//!     pub struct Ipc {
//!         /// Most exports.
//!         pub max_handles | "max_exports": u32 = 0;
//!     }
//! }
//!
//! let context = Context::empty().with_variable("UMF_IPC_MAX_HANDLES", "16");
//! let loaded = Loader::with_context(context).load(Schema::new().section::<Ipc>("ipc", "Processes."))?;
//! assert_eq!(loaded.section::<Ipc>("ipc")?.max_handles, 16);
//! assert_eq!(loaded.origin("ipc.max_handles").to_string(), "UMF_IPC_MAX_HANDLES");
//! # Ok::<(), umf_config::Error>(())
//! ```
//!
//! The key `ipc.exchange` is set by the variable `UMF_IPC_EXCHANGE`, `pool.small.capacity` by
//! `UMF_POOL_SMALL_CAPACITY`, and so on ([`variable_name`]). `UMF_SET` takes TOML for names that fit no
//! variable.

mod check;
mod context;
mod environment;
mod error;
mod file;
mod listing;
mod loaded;
mod loader;
mod locate;
mod origin;
mod schema;
mod shown;
mod strict;
mod warning;

pub use config::ValueKind;
pub use context::Context;
pub use environment::RecognisedVariable;
pub use error::Error;
pub use file::FILE_LIMIT;
pub use loaded::{Loaded, Row, Set};
pub use loader::Loader;
pub use origin::Origin;
pub use schema::{KeyTexts, LegacyVariable, Schema, Sets, Shape, variable_name};
pub use umf_core::settings::ByteSize;
pub use warning::Warning;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
