//! Kinds of provider and pool, by the names that `umf.toml` and variables use.
//!
//! A kind implements [`ProviderFactory`] or [`PoolFactory`]; its keys are a struct that
//! [`settings!`] defines. One line registers it, before the first use of umf:
//!
//! ```
//! # use std::sync::Arc;
//! use umf::registry::{FactoryError, Provider, ProviderFactory};
//!
//! umf::registry::settings! {
//!     /// The keys of the kind `scratch`.
//!     pub struct ScratchSettings {
//!         /// Whether each region has a descriptor of its own.
//!         pub isolate: bool = false;
//!     }
//! }
//!
//! struct Scratch;
//!
//! impl ProviderFactory for Scratch {
//!     const KIND: &'static str = "scratch";
//!     type Settings = ScratchSettings;
//!
//!     fn build(name: &str, settings: ScratchSettings) -> Result<Arc<dyn Provider>, FactoryError> {
//!         Ok(umf::host::HostProvider::builder().name(name.to_owned()).isolate(settings.isolate).build()?)
//!     }
//! }
//!
//! umf::registry::register_provider::<Scratch>();
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use umf_config::{Set, Shape};
use umf_core::Pool;
#[doc(inline)]
pub use umf_core::{FactoryError, Import, PoolFactory, PoolRequest, Provider, ProviderFactory, settings};
use umf_pool_proxy::ProxyPool;
use umf_sync::Lock;

pub use crate::process::register_import;
use crate::{Error, Result, kinds};

/// The importer of a kind, if it has one.
type OptionalImport = Option<Arc<dyn Import>>;

/// A kind of provider, with its types erased.
#[derive(Clone, Copy)]
pub(crate) struct ProviderEntry {
    kind: &'static str,
    shape: Shape,
    pub(crate) build: fn(&Set) -> Result<Arc<dyn Provider>>,
    pub(crate) import: fn(&Set) -> Result<OptionalImport>,
}

/// A kind of pool, with its types erased.
#[derive(Clone, Copy)]
pub(crate) struct PoolEntry {
    kind: &'static str,
    shape: Shape,
    pub(crate) build: fn(&Set, PoolRequest<'_>) -> Result<Arc<dyn Pool>>,
}

const fn provider_entry<F: ProviderFactory>() -> ProviderEntry {
    ProviderEntry {
        kind: F::KIND,
        shape: Shape::of::<F::Settings>(),
        build: |set| {
            let settings = set.read::<F::Settings>()?;
            F::build(set.name(), settings).map_err(|error| factory_error("provider", set.name(), error))
        },
        import: |set| Ok(F::import(&set.read::<F::Settings>()?)),
    }
}

const fn pool_entry<F: PoolFactory>() -> PoolEntry {
    PoolEntry {
        kind: F::KIND,
        shape: Shape::of::<F::Settings>(),
        build: |set, request| {
            let settings = set.read::<F::Settings>()?;
            let name = request.name.to_owned();
            F::build(request, settings).map_err(|error| factory_error("pool", &name, error))
        },
    }
}

macro_rules! entries {
    ($entry:ident: $($feature:literal $kind:literal $factory:ty,)+) => {
        &[$(#[cfg(feature = $feature)] $entry::<$factory>(),)+]
    };
}

macro_rules! absent {
    (of: $($feature:literal $kind:literal $factory:ty,)+) => {
        &[$(#[cfg(not(feature = $feature))] ($kind, $feature),)+]
    };
}

static BUILT_IN_PROVIDERS: &[ProviderEntry] = kinds::providers!(entries provider_entry);
static BUILT_IN_POOLS: &[PoolEntry] = kinds::pools!(entries pool_entry);
/// The kinds of umf that this build lacks, each with the feature that adds it.
const ABSENT_PROVIDERS: &[(&str, &str)] = kinds::providers!(absent of);
const ABSENT_POOLS: &[(&str, &str)] = kinds::pools!(absent of);

static PROVIDERS: Lock<BTreeMap<&'static str, ProviderEntry>> = Lock::new(BTreeMap::new());
static POOLS: Lock<BTreeMap<&'static str, PoolEntry>> = Lock::new(BTreeMap::new());

/// Registers a kind of provider. Call it before settings are first read: sets of a kind that is
/// registered later are ignored. Replaces an earlier kind of the same name, except the kinds of
/// umf.
pub fn register_provider<F: ProviderFactory>() {
    PROVIDERS.lock().insert(F::KIND, provider_entry::<F>());
}

/// Registers a kind of pool, as [`register_provider`] does for providers.
pub fn register_pool<F: PoolFactory>() {
    POOLS.lock().insert(F::KIND, pool_entry::<F>());
}

fn providers() -> BTreeMap<&'static str, ProviderEntry> {
    let mut all = PROVIDERS.lock().clone();
    all.extend(BUILT_IN_PROVIDERS.iter().map(|entry| (entry.kind, *entry)));
    all
}

fn pools() -> BTreeMap<&'static str, PoolEntry> {
    let mut all = POOLS.lock().clone();
    let built_in = BUILT_IN_POOLS.iter().copied().chain([pool_entry::<ProxyPool>()]);
    all.extend(built_in.map(|entry| (entry.kind, entry)));
    all
}

pub(crate) fn provider(kind: &str) -> Option<ProviderEntry> {
    providers().get(kind).copied()
}

pub(crate) fn pool(kind: &str) -> Option<PoolEntry> {
    pools().get(kind).copied()
}

/// Returns the feature that adds `kind`, if it is a kind of umf that this build lacks.
fn feature(absent: &[(&str, &'static str)], kind: &str) -> Option<&'static str> {
    absent.iter().find(|(name, _)| *name == kind).map(|(_, feature)| *feature)
}

/// Returns the error for a set whose kind is not registered.
pub(crate) fn unknown_kind(what: &'static str, name: &str, kind: &str) -> Error {
    let (absent, known) = match what {
        "provider" => (ABSENT_PROVIDERS, provider_kinds()),
        _ => (ABSENT_POOLS, pool_kinds()),
    };
    let (name, kind) = (name.to_owned(), kind.to_owned());
    match feature(absent, &kind) {
        Some(feature) => Error::MissingFeature { what, name, feature },
        None => Error::UnknownKind { what, name, kind, known: known.join(", ") },
    }
}

/// Returns the kinds of provider of umf that this build lacks and the program did not register.
pub(crate) fn absent_providers() -> Vec<&'static str> {
    let known = providers();
    ABSENT_PROVIDERS.iter().map(|(kind, _)| *kind).filter(|kind| !known.contains_key(kind)).collect()
}

pub(crate) fn provider_shapes() -> BTreeMap<String, Shape> {
    providers().into_iter().map(|(kind, entry)| (kind.to_owned(), entry.shape)).collect()
}

pub(crate) fn pool_shapes() -> BTreeMap<String, Shape> {
    pools().into_iter().map(|(kind, entry)| (kind.to_owned(), entry.shape)).collect()
}

/// Returns all kinds of provider that settings can name.
#[must_use]
pub fn provider_kinds() -> Vec<String> {
    providers().into_keys().map(str::to_owned).collect()
}

/// Returns all kinds of pool that settings can name.
#[must_use]
pub fn pool_kinds() -> Vec<String> {
    pools().into_keys().map(str::to_owned).collect()
}

/// Converts the error of a factory to one of this crate.
fn factory_error(what: &'static str, name: &str, error: FactoryError) -> Error {
    let name = name.to_owned();
    let error = match error.downcast::<umf_core::Error>() {
        Ok(error) => {
            return match *error {
                umf_core::Error::InvalidArgument { what: key, why } => {
                    Error::Contradiction { what, name, key, why }
                }
                error => error.into(),
            };
        }
        Err(error) => error,
    };
    #[cfg(feature = "topology")]
    let error = match error.downcast::<umf_topology::Error>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    #[cfg(feature = "plugin")]
    let error = match error.downcast::<umf_provider_plugin::PluginError>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::Factory { what, name, source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_kinds_are_listed_by_their_factory_names() {
        macro_rules! names {
            ($trait:ident: $($feature:literal $kind:literal $factory:ty,)+) => {
                $(#[cfg(feature = $feature)] assert_eq!($kind, <$factory as $trait>::KIND);)+
            };
        }
        kinds::providers!(names ProviderFactory);
        kinds::pools!(names PoolFactory);
    }
}
