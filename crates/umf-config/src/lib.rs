//! Settings of umf: `umf.toml`, the environment and their sources.
//!
//! A [`Loader`] merges defaults, settings files, the environment and what the program sets, in this
//! order, into typed [`Settings`] that remember where each value came from ([`Settings::report`]).
//! Wrong keys and values are an [`Error`] that names the key, the source and what would be valid;
//! what is merely odd is a [`Warning`] beside the settings. This crate prints nothing and never panics
//! on what comes from outside.
//!
//! ```no_run
//! let loaded = umf_config::Loader::new().load()?;
//! for warning in &loaded.warnings {
//!     eprintln!("umf: {warning}");
//! }
//! for row in loaded.settings.report() {
//!     println!("{} = {} ({})", row.key, row.value, row.origin);
//! }
//! # Ok::<(), umf_config::Error>(())
//! ```
//!
//! The key `ipc.exchange` is set by the variable `UMF_IPC_EXCHANGE`, `pool.small.capacity` by
//! `UMF_POOL_SMALL_CAPACITY`, and so on ([`variable_name`]). Names that jobs have used with earlier
//! libraries keep their meaning: `UMF_LOG`, `UMF_MAX_OPENED_IPC_HANDLES` and others.

mod context;
mod decode;
mod environment;
mod error;
mod field;
mod file;
mod layer;
mod legacy;
mod loader;
mod locate;
mod origin;
mod report;
mod schema;
mod settings;
mod shown;
mod umf_log;
mod value;
mod warning;

pub use context::Context;
pub use error::Error;
pub use file::FILE_LIMIT;
pub use legacy::RecognisedVariable;
pub use loader::{Loaded, Loader};
pub use origin::Origin;
pub use report::Row;
pub use schema::{KnownKey, known_keys, variable_name};
pub use settings::{
    DeviceHandles, DeviceMemory, DmaBufExporter, Exchange, ExchangeMethod, FreePolicy, HugePages, Ipc, Leaks,
    LeasePolicy, LimitPolicy, Link, LinkEngine, Log, LogLevel, LogOutput, NumaMode, NumaWeight, OnFree,
    Params, Poison, Pool, Pools, Provider, Ptracer, Settings, Shards, SharedLimit, Visibility,
};
pub use umf_core::settings::{ByteSize, ParseByteSizeError};
pub use value::Value;
pub use warning::Warning;
