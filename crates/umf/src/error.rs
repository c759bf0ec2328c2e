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
    #[cfg(feature = "domain")]
    #[error(transparent)]
    Domain(#[from] umf_domain::Error),
    /// NUMA nodes, or a memory space.
    #[cfg(feature = "topology")]
    #[error(transparent)]
    Topology(#[from] umf_topology::Error),
    /// A link.
    #[cfg(feature = "link")]
    #[error(transparent)]
    Link(#[from] umf_link::Error),
    /// Settings.
    #[cfg(feature = "config")]
    #[error(transparent)]
    Settings(Arc<umf_config::Error>),
    /// A plugin.
    #[cfg(feature = "plugin")]
    #[error(transparent)]
    Plugin(Arc<umf_provider_plugin::PluginError>),
    /// A kind of provider or pool that is not registered.
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
    /// A part of umf that this program was built without.
    #[error(
        "{what} {name:?} needs a part of umf that this program was built without; build it with \
         features = [{feature:?}] of umf-rs"
    )]
    MissingFeature {
        /// "provider", "pool" or "key".
        what: &'static str,
        /// The set in the settings, or the key.
        name: String,
        /// The feature of the package `umf-rs`.
        feature: &'static str,
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

#[cfg(feature = "config")]
impl From<umf_config::Error> for Error {
    fn from(error: umf_config::Error) -> Self {
        Self::Settings(Arc::new(error))
    }
}

#[cfg(feature = "plugin")]
impl From<umf_provider_plugin::PluginError> for Error {
    fn from(error: umf_provider_plugin::PluginError) -> Self {
        Self::Plugin(Arc::new(error))
    }
}
