//! Kinds of provider and pool, so that `umf.toml` and variables can name them.
//!
//! A kind implements [`ProviderFactory`] or [`PoolFactory`]; its keys are a struct that
//! [`umf_core::settings!`] makes. One line registers it, before umf is first used:
//!
//! ```
//! # use std::sync::Arc;
//! use umf::core::{FactoryError, Provider, ProviderFactory};
//!
//! umf::core::settings! {
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
//! umf::registry::provider_kind::<Scratch>();
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use umf_config::{Set, Shape};
use umf_core::{FactoryError, Import, Pool, PoolFactory, PoolRequest, Provider, ProviderFactory};
use umf_pool_proxy::ProxyPool;
use umf_pool_slab::SlabPool;
use umf_provider_cuda::CudaProvider;
use umf_provider_dma_buf::DmaBufProvider;
use umf_provider_file::{DevDaxProvider, FileProvider, FixedProvider};
use umf_provider_level_zero::LevelZeroProvider;
use umf_sync::Lock;

use crate::kinds::{Host, Plugin};
use crate::{Error, Result, process};

/// Opens memory of a kind of other processes, if the kind has such.
type OptionalImport = Option<Arc<dyn Import>>;

/// A kind of provider, without its types.
#[derive(Clone, Copy)]
pub(crate) struct ProviderEntry {
    kind: &'static str,
    shape: Shape,
    pub(crate) build: fn(&Set) -> Result<Arc<dyn Provider>>,
    pub(crate) import: fn(&Set) -> Result<OptionalImport>,
}

/// A kind of pool, without its types.
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
            F::build(set.name(), settings).map_err(|error| failed("provider", set.name(), error))
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
            F::build(request, settings).map_err(|error| failed("pool", &name, error))
        },
    }
}

static BUILT_IN_PROVIDERS: [ProviderEntry; 8] = [
    provider_entry::<CudaProvider>(),
    provider_entry::<DevDaxProvider>(),
    provider_entry::<DmaBufProvider>(),
    provider_entry::<FileProvider>(),
    provider_entry::<FixedProvider>(),
    provider_entry::<Host>(),
    provider_entry::<LevelZeroProvider>(),
    provider_entry::<Plugin>(),
];

static BUILT_IN_POOLS: &[PoolEntry] = &[
    #[cfg(feature = "jemalloc")]
    pool_entry::<umf_pool_jemalloc::JemallocPool>(),
    pool_entry::<ProxyPool>(),
    pool_entry::<SlabPool>(),
];

static PROVIDERS: Lock<BTreeMap<&'static str, ProviderEntry>> = Lock::new(BTreeMap::new());
static POOLS: Lock<BTreeMap<&'static str, PoolEntry>> = Lock::new(BTreeMap::new());
static IMPORTS: Lock<Vec<Arc<dyn Import>>> = Lock::new(Vec::new());

/// Registers a kind of provider, before settings are first read: a set of a kind that is registered later
/// stays unread. A second kind of the same name replaces the first; those of umf cannot be replaced.
pub fn provider_kind<F: ProviderFactory>() {
    PROVIDERS.lock().insert(F::KIND, provider_entry::<F>());
}

/// Registers a kind of pool, as [`provider_kind`] does for providers.
pub fn pool_kind<F: PoolFactory>() {
    POOLS.lock().insert(F::KIND, pool_entry::<F>());
}

/// Lets [`crate::open`] open one more kind of memory. A second one of the same kind replaces the first.
pub fn import(import: Arc<dyn Import>) {
    let kind = import.kind();
    let before: Vec<_> = {
        let mut imports = IMPORTS.lock();
        let before = imports.extract_if(.., |known| known.kind() == kind).collect();
        imports.push(Arc::clone(&import));
        before
    };
    // Dropped without the lock: it may own pools.
    drop(before);
    if let Some(importer) = process::made_importer() {
        importer.add_import(import);
    }
}

pub(crate) fn imports() -> Vec<Arc<dyn Import>> {
    IMPORTS.lock().clone()
}

fn providers() -> BTreeMap<&'static str, ProviderEntry> {
    let mut all = PROVIDERS.lock().clone();
    all.extend(BUILT_IN_PROVIDERS.iter().map(|entry| (entry.kind, *entry)));
    all
}

fn pools() -> BTreeMap<&'static str, PoolEntry> {
    let mut all = POOLS.lock().clone();
    all.extend(BUILT_IN_POOLS.iter().map(|entry| (entry.kind, *entry)));
    all
}

pub(crate) fn provider(kind: &str) -> Option<ProviderEntry> {
    providers().get(kind).copied()
}

pub(crate) fn pool(kind: &str) -> Option<PoolEntry> {
    pools().get(kind).copied()
}

pub(crate) fn provider_shapes() -> BTreeMap<String, Shape> {
    providers().into_iter().map(|(kind, entry)| (kind.to_owned(), entry.shape)).collect()
}

pub(crate) fn pool_shapes() -> BTreeMap<String, Shape> {
    pools().into_iter().map(|(kind, entry)| (kind.to_owned(), entry.shape)).collect()
}

/// All kinds of provider that settings can name.
#[must_use]
pub fn provider_kinds() -> Vec<String> {
    providers().into_keys().map(str::to_owned).collect()
}

/// All kinds of pool that settings can name.
#[must_use]
pub fn pool_kinds() -> Vec<String> {
    pools().into_keys().map(str::to_owned).collect()
}

/// The error of a factory, as one of this crate.
fn failed(what: &'static str, name: &str, error: FactoryError) -> Error {
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
    let error = match error.downcast::<umf_topology::Error>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    let error = match error.downcast::<crate::plugin::PluginError>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::Factory { what, name, source: error.into() },
    }
}
