//! Settings from files, the environment and the program, with the origin of each value.
//!
//! This crate defines no keys. A [`Schema`] lists the sections, from structs that
//! [`umf_core::settings!`] defines; the crate `umf` has the schema of umf, with the kinds of
//! provider and pool that the program registered. A [`Loader`] reads all sources, checks each key
//! of each source, and merges them. [`Loaded`] has the typed values and their origins.
//!
//! An invalid key or value is an [`Error`]. Its text begins with the source (`umf.toml:14`, or the
//! name of a variable) and states what is valid. Problems that do not prevent loading are a
//! [`Warning`]. This crate prints nothing, and never panics on external input.
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
//! `UMF_POOL_SMALL_CAPACITY`, and so on ([`variable_name`]). `UMF_SET` takes TOML for names that
//! fit no variable.

mod check;
mod environment;
mod error;
mod file;
mod loaded;
mod loader;
mod origin;
mod schema;
mod strict;

pub use config::ValueKind;
pub use environment::RecognisedVariable;
use error::escape;
pub use error::{Error, Warning};
pub use file::FILE_LIMIT;
pub use loaded::{Loaded, Row, Set};
pub use loader::{Context, Loader};
pub use origin::Origin;
pub use schema::{KeyTexts, LegacyVariable, Schema, Sets, Shape, variable_name};
pub use umf_core::settings::ByteSize;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
