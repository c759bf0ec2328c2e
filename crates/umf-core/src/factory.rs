//! [`ProviderFactory`] and [`PoolFactory`]: build a provider or a pool of a kind from settings.
//!
//! A kind is a type that implements one of these traits. The application registers it by one line
//! (`umf::registry`). Then `umf.toml` and variables can name the kind and set its keys.

use std::error::Error;
use std::sync::Arc;

use crate::limit::SharedLimitRef;
use crate::settings::Settings;
use crate::{Import, Pool, Provider, ProviderRef};

/// The error of a factory: [`crate::Error`], or one that the kind defines.
pub type FactoryError = Box<dyn Error + Send + Sync>;

/// Makes providers of one kind from settings.
pub trait ProviderFactory: 'static {
    /// The kind, as settings name it.
    const KIND: &'static str;
    /// The keys of the kind.
    type Settings: Settings;

    /// Builds the provider of the set `name`.
    ///
    /// # Errors
    /// Those of the provider. Settings that contradict each other are
    /// [`crate::Error::InvalidArgument`] with the key.
    fn build(name: &str, settings: Self::Settings) -> Result<Arc<dyn Provider>, FactoryError>;

    /// Returns the importer for memory of this kind; `settings` may select its driver. Called once
    /// per process, with the defaults if there is no set of the kind. Must not initialise a driver.
    fn import(settings: &Self::Settings) -> Option<Arc<dyn Import>> {
        let _ = settings;
        None
    }
}

/// The parameters of a pool besides the keys of its kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolRequest<'a> {
    /// The name of the set, which is also the name of the pool.
    pub name: &'a str,
    /// The provider of its regions.
    pub provider: ProviderRef,
    /// The limit of the bytes that it reserves; 0 is unlimited.
    pub memory_limit: u64,
    /// A limit that it shares with other pools.
    pub shared_limit: Option<SharedLimitRef>,
}

impl<'a> PoolRequest<'a> {
    /// Returns a request for a pool over `provider` without limits.
    #[must_use]
    pub const fn new(name: &'a str, provider: ProviderRef) -> Self {
        Self { name, provider, memory_limit: 0, shared_limit: None }
    }
}

/// Makes pools of one kind from settings.
pub trait PoolFactory: 'static {
    /// The kind, as settings name it.
    const KIND: &'static str;
    /// The keys of the kind.
    type Settings: Settings;

    /// Builds a pool.
    ///
    /// # Errors
    /// As [`ProviderFactory::build`].
    fn build(request: PoolRequest<'_>, settings: Self::Settings) -> Result<Arc<dyn Pool>, FactoryError>;
}
