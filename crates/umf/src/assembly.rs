//! Builds the providers and pools that the settings name.

use std::collections::BTreeMap;
use std::sync::Arc;

use umf_config::Set;
use umf_core::deferred::OnFree;
use umf_core::limit::SharedLimit;
use umf_core::pool::missing;
use umf_core::{PoolRequest, Provider, ProviderRef, Visibility};
use umf_runtime::checked::CheckSettings;
use umf_sync::Lock;

use crate::pool::checked;
use crate::settings::{PoolKeys, Settings};
use crate::{Error, Result, registry};

/// Builds the provider `[provider.<name>]`.
pub(crate) fn provider(settings: &Settings, name: &str) -> Result<Arc<dyn Provider>> {
    if !settings.has_provider(name) {
        let known = settings.providers().join(", ");
        return Err(Error::UnknownName { what: "provider", name: name.to_owned(), known });
    }
    let set = settings.loaded().set("provider", name);
    match registry::provider(set.kind()).filter(|_| set.is_known()) {
        Some(entry) => (entry.build)(&set),
        None => Err(registry::unknown_kind("provider", name, set.kind())),
    }
}

/// Checks that a pool named `shared`, `private` or `isolated` has such memory.
fn check_memory(name: &str, set: &Set, provider: &ProviderRef) -> Result<()> {
    let error = |key, why| Err(Error::Contradiction { what: "pool", name: name.to_owned(), key, why });
    let visibility = provider.visibility();
    match name {
        "shared" | "isolated" if visibility == Visibility::Private => {
            error("provider", "a pool of this name needs shared memory, and this provider has private memory")
        }
        "private" if visibility == Visibility::Shared => {
            error("provider", "a pool of this name needs private memory, and this provider has shared memory")
        }
        "isolated" if set.kind() != "proxy" => error(
            "kind",
            "a pool of this name must be of kind \"proxy\": leave the key out, or rename the pool",
        ),
        "isolated" if provider.name() != "isolated" => error(
            "provider",
            "a pool of this name uses [provider.isolated]: change that set, or rename the pool",
        ),
        _ => Ok(()),
    }
}

/// Builds the pool `[pool.<name>]` over `provider`. Keys that the set leaves out come from
/// `pool.defaults`.
pub(crate) fn pool(
    settings: &Settings,
    name: &str,
    provider: ProviderRef,
) -> Result<Arc<dyn umf_core::Pool>> {
    let set = settings.loaded().set("pool", name);
    let Some(entry) = registry::pool(set.kind()).filter(|_| set.is_known()) else {
        return Err(registry::unknown_kind("pool", name, set.kind()));
    };
    check_memory(name, &set, &provider)?;
    let keys: PoolKeys = set.read()?;
    let mut request = PoolRequest::new(name, provider);
    request.memory_limit = keys.memory_limit;
    if keys.shared_limit != "none" {
        request.shared_limit = Some(shared_limit(settings, &keys.shared_limit)?.into());
    }
    let checks: CheckSettings = set.read()?;
    let pool = checked((entry.build)(&set, request)?, checks)?;
    apply_on_free(&*pool, &keys)?;
    if keys.reserve != 0 {
        pool.reserves().ok_or(missing("reserving memory"))?.reserve(keys.reserve)?;
    }
    Ok(pool)
}

/// Configures deferred frees. Keys other than the defaults are an error for a kind that does not
/// support them.
fn apply_on_free(pool: &dyn umf_core::Pool, keys: &PoolKeys) -> Result<()> {
    if keys.on_free == OnFree::Release || keys.max_held != 0 {
        let controls = pool.controls().ok_or(missing("holding freed memory"))?;
        controls.set_on_free(keys.on_free, keys.max_held);
    }
    Ok(())
}

/// Returns the shared limit `name`. All pools of the process that name it share one.
fn shared_limit(settings: &Settings, name: &str) -> Result<Arc<SharedLimit>> {
    static LIMITS: Lock<BTreeMap<String, Arc<SharedLimit>>> = Lock::new(BTreeMap::new());
    let bytes = settings.shared_limits.get(name).ok_or_else(|| Error::UnknownName {
        what: "shared limit",
        name: name.to_owned(),
        known: settings.shared_limits.keys().cloned().collect::<Vec<_>>().join(", "),
    })?;
    let mut limits = LIMITS.lock();
    let limit = limits.entry(name.to_owned()).or_insert_with(|| Arc::new(SharedLimit::new(bytes.get())));
    Ok(Arc::clone(limit))
}
