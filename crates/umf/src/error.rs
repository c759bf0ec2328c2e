//! [`Error`]: the error of every function of this crate.

use std::fmt;
use std::sync::Arc;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of umf: one variant per part of umf, with the error of that part.
///
/// `Debug` prints the text of `Display`, so that `fn main() -> umf::Result<()>` shows what to do.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of a provider or pool.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// An error of exporting or opening.
    #[error(transparent)]
    Ipc(#[from] umf_ipc::Error),
    /// An error of a domain.
    #[cfg(feature = "domain")]
    #[error(transparent)]
    Domain(#[from] umf_domain::Error),
    /// An error of the NUMA topology, or of a memory space.
    #[cfg(feature = "topology")]
    #[error(transparent)]
    Topology(#[from] umf_topology::Error),
    /// An error of a link.
    #[cfg(feature = "link")]
    #[error(transparent)]
    Link(#[from] umf_link::Error),
    /// An error of remote memory.
    #[cfg(feature = "remote")]
    #[error(transparent)]
    Remote(#[from] umf_remote::Error),
    /// An error in the settings.
    #[cfg(feature = "config")]
    #[error(transparent)]
    Settings(Arc<umf_config::Error>),
    /// A plugin cannot be loaded.
    #[cfg(feature = "plugin")]
    #[error(transparent)]
    Plugin(Arc<umf_provider_plugin::PluginError>),
    /// A set of settings has a kind that is not registered.
    #[error(
        "{what} {name:?} is of kind {kind:?}, which is not registered; use one of: {known}; or register the kind before the first use of umf"
    )]
    UnknownKind {
        /// "provider" or "pool".
        what: &'static str,
        /// The name of the set.
        name: String,
        /// The kind of the set.
        kind: String,
        /// The registered kinds.
        known: String,
    },
    /// The settings use a part of umf that this program was built without.
    #[error(
        "{what} {name:?} needs a part of umf that this program was built without; build it with \
         features = [{feature:?}] of umf-rs"
    )]
    MissingFeature {
        /// "provider", "pool" or "key".
        what: &'static str,
        /// The name of the set, or the key.
        name: String,
        /// The cargo feature of the package `umf-rs`.
        feature: &'static str,
    },
    /// The settings do not define the name.
    #[error("the settings have no {what} {name:?}; define it, or use one of: {known}")]
    UnknownName {
        /// "provider" or "shared limit".
        what: &'static str,
        /// The name.
        name: String,
        /// The names that are defined.
        known: String,
    },
    /// Settings that contradict each other.
    #[error("{what} {name:?}: {key}: {why}")]
    Contradiction {
        /// "provider" or "pool".
        what: &'static str,
        /// The name of the set.
        name: String,
        /// The key.
        key: &'static str,
        /// The reason, and what to do.
        why: &'static str,
    },
    /// A factory of another crate failed.
    #[error("{what} {name:?}: {source}")]
    Factory {
        /// "provider" or "pool".
        what: &'static str,
        /// The name of the set.
        name: String,
        /// The factory's error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// [`crate::init`] was called after the first use of umf.
    #[error(
        "cannot initialise umf: it was used before umf::init; call umf::init first, at the start of main"
    )]
    AlreadyInitialised,
    /// The memory is not accessible in this way: it is device memory, or shared.
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
