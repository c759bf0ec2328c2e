//! What an application sees when something fails.

use std::fmt;
use std::sync::Arc;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed: one variant per part of umf, each with its own full story.
///
/// `Debug` prints what `Display` does, so that `fn main() -> umf::Result<()>` shows what to do.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A provider or pool.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// Exporting or opening.
    #[error(transparent)]
    Ipc(#[from] umf_ipc::Error),
    /// A domain.
    #[error(transparent)]
    Domain(#[from] umf_domain::Error),
    /// NUMA nodes, or a memory space.
    #[error(transparent)]
    Topology(#[from] umf_topology::Error),
    /// A link.
    #[error(transparent)]
    Link(#[from] umf_link::Error),
    /// Settings.
    #[error(transparent)]
    Settings(Arc<umf_config::Error>),
    /// A plugin.
    #[error(transparent)]
    Plugin(Arc<crate::plugin::PluginError>),
    /// A kind of provider or pool that nobody registered.
    #[error("{what} {name:?} is of kind {kind:?}, which is not known here; known kinds: {known}")]
    UnknownKind {
        /// "provider" or "pool".
        what: &'static str,
        /// The set in the settings.
        name: String,
        /// Its kind.
        kind: String,
        /// What would be valid.
        known: String,
    },
    /// A name that the settings do not have.
    #[error("the settings have no {what} {name:?}; there are: {known}")]
    UnknownName {
        /// "provider" or "shared limit".
        what: &'static str,
        /// The name.
        name: String,
        /// What would be valid.
        known: String,
    },
    /// Settings that contradict each other.
    #[error("{what} {name:?}: {key}: {why}")]
    Contradiction {
        /// "provider" or "pool".
        what: &'static str,
        /// The set in the settings.
        name: String,
        /// The key.
        key: &'static str,
        /// What does not fit, and what would.
        why: &'static str,
    },
    /// A factory of another crate failed with an error of its own.
    #[error("{what} {name:?}: {source}")]
    Factory {
        /// "provider" or "pool".
        what: &'static str,
        /// The set in the settings.
        name: String,
        /// The error of the factory.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// [`crate::init`] came too late.
    #[error("umf was used before umf::init; call it first, at the start of main")]
    AlreadyInitialised,
    /// The memory cannot be touched by the CPU, or only through copies.
    #[error("{0}")]
    Inaccessible(&'static str),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<umf_ipc::DecodeError> for Error {
    fn from(error: umf_ipc::DecodeError) -> Self {
        Self::Ipc(error.into())
    }
}

impl From<umf_config::Error> for Error {
    fn from(error: umf_config::Error) -> Self {
        Self::Settings(Arc::new(error))
    }
}

impl From<crate::plugin::PluginError> for Error {
    fn from(error: crate::plugin::PluginError) -> Self {
        Self::Plugin(Arc::new(error))
    }
}
