//! Kinds of provider and pool that come from elsewhere, so that `umf.toml` can name them.
//!
//! ```
//! # use std::sync::Arc;
//! umf::registry::provider_kind("scratch", |_name, settings| {
//!     let provider = umf::host::HostProvider::builder().isolate(settings.isolate).build()?;
//!     Ok(provider)
//! });
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use umf_core::ProviderRef;
use umf_core::{Import, Pool, Provider};
use umf_sync::Lock;

use crate::{Result, process};

/// Makes a provider from the settings of a `[provider.<name>]`, of which `params` is passed through untouched.
pub type ProviderFactory = dyn Fn(&str, &umf_config::Provider) -> Result<Arc<dyn Provider>> + Send + Sync;

/// Makes a pool over a provider from the settings of a `[pool.<name>]`.
pub type PoolFactory = dyn Fn(&str, &umf_config::Pool, ProviderRef) -> Result<Arc<dyn Pool>> + Send + Sync;

static PROVIDERS: Lock<BTreeMap<String, Arc<ProviderFactory>>> = Lock::new(BTreeMap::new());
static POOLS: Lock<BTreeMap<String, Arc<PoolFactory>>> = Lock::new(BTreeMap::new());
static IMPORTS: Lock<Vec<Arc<dyn Import>>> = Lock::new(Vec::new());

/// Registers a kind of provider. A second one of the same name replaces the first; the kinds `host`, `dma-buf`, `level-zero`,
/// `cuda` and `plugin` are built in and cannot be replaced.
pub fn provider_kind<P: Provider + 'static>(
    kind: &str,
    make: impl Fn(&str, &umf_config::Provider) -> Result<Arc<P>> + Send + Sync + 'static,
) {
    let make = move |name: &str, settings: &umf_config::Provider| -> Result<Arc<dyn Provider>> {
        Ok(make(name, settings)?)
    };
    let before = PROVIDERS.lock().insert(kind.to_owned(), Arc::new(make));
    // Without the lock: it may own pools.
    drop(before);
}

/// Registers a kind of pool. The kinds `slab` and `proxy` are built in and cannot be replaced.
pub fn pool_kind<P: Pool + 'static>(
    kind: &str,
    make: impl Fn(&str, &umf_config::Pool, ProviderRef) -> Result<Arc<P>> + Send + Sync + 'static,
) {
    let make = move |name: &str,
                     settings: &umf_config::Pool,
                     provider: ProviderRef|
          -> Result<Arc<dyn Pool>> { Ok(make(name, settings, provider)?) };
    let before = POOLS.lock().insert(kind.to_owned(), Arc::new(make));
    // As above.
    drop(before);
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
    // As above.
    drop(before);
    if let Some(importer) = process::made_importer() {
        importer.add_import(import);
    }
}

pub(crate) fn imports() -> Vec<Arc<dyn Import>> {
    IMPORTS.lock().clone()
}

pub(crate) fn provider_factory(kind: &str) -> Option<Arc<ProviderFactory>> {
    PROVIDERS.lock().get(kind).cloned()
}

pub(crate) fn pool_factory(kind: &str) -> Option<Arc<PoolFactory>> {
    POOLS.lock().get(kind).cloned()
}

/// All kinds of provider that settings can name.
#[must_use]
pub fn provider_kinds() -> Vec<String> {
    ["cuda", "dma-buf", "host", "level-zero", "plugin"]
        .into_iter()
        .map(str::to_owned)
        .chain(PROVIDERS.lock().keys().cloned())
        .collect()
}

/// All kinds of pool that settings can name.
#[must_use]
pub fn pool_kinds() -> Vec<String> {
    ["proxy", "slab"].into_iter().map(str::to_owned).chain(POOLS.lock().keys().cloned()).collect()
}
