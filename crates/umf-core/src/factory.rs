//! Factories: how settings make a provider or a pool of a kind.
//!
//! A kind is a type that implements [`ProviderFactory`] or [`PoolFactory`]. The application
//! registers it with one line (`umf::registry`), and `umf.toml` and variables can name it and set
//! its keys.

use std::error::Error;
use std::sync::Arc;

use crate::limit::SharedLimitRef;
use crate::settings::Settings;
use crate::{Import, Pool, Provider, ProviderRef};

/// Why a factory failed: [`crate::Error`], or an error of the kind's own.
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

    /// How to open memory of this kind of other processes, by what a set says of drivers. Called
    /// once for a process, with the defaults if there is no set of the kind. Must not start a
    /// driver.
    fn import(settings: &Self::Settings) -> Option<Arc<dyn Import>> {
        let _ = settings;
        None
    }
}

/// What a pool is to be made of, besides the keys of its kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolRequest<'a> {
    /// The name of the set, which the pool has too.
    pub name: &'a str,
    /// Where its regions come from.
    pub provider: ProviderRef,
    /// Bytes that it may hold; 0 is unlimited.
    pub memory_limit: u64,
    /// A limit that it shares with other pools.
    pub shared_limit: Option<SharedLimitRef>,
}

impl<'a> PoolRequest<'a> {
    /// A pool over `provider` without limits.
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
