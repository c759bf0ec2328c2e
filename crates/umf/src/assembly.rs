//! From settings to providers and pools, by name.

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

/// The provider that the settings call `name`.
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

/// A pool whose name promises shared, private or isolated memory gets such memory, or is an error.
fn check_memory(name: &str, set: &Set, provider: &ProviderRef) -> Result<()> {
    let error = |key, why| Err(Error::Contradiction { what: "pool", name: name.to_owned(), key, why });
    let visibility = provider.visibility();
    match name {
        "shared" | "isolated" if visibility == Visibility::Private => {
            error("provider", "the name of this pool says shared memory, and this provider's is private")
        }
        "private" if visibility == Visibility::Shared => {
            error("provider", "the name of this pool says private memory, and this provider's is shared")
        }
        "isolated" if set.kind() != "proxy" => {
            error("kind", "isolated blocks have a region each: leave the key out, or rename the pool")
        }
        "isolated" if provider.name() != "isolated" => error(
            "provider",
            "isolated blocks come from [provider.isolated]: change that, or rename the pool",
        ),
        _ => Ok(()),
    }
}

/// The pool that the settings call `name` (its keys come from `pool.defaults` where it has none), over `provider`.
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
    holding(&*pool, &keys)?;
    // A kind that cannot is an error.
    if keys.reserve != 0 {
        pool.reserves().ok_or(missing("reserving memory"))?.reserve(keys.reserve)?;
    }
    Ok(pool)
}

/// Sets what a pool does with blocks that are freed and still open elsewhere. A kind that cannot is an error, if the settings
/// say something.
fn holding(pool: &dyn umf_core::Pool, keys: &PoolKeys) -> Result<()> {
    if keys.on_free == OnFree::Release || keys.max_held != 0 {
        let controls = pool.controls().ok_or(missing("holding freed memory"))?;
        controls.set_on_free(keys.on_free, keys.max_held);
    }
    Ok(())
}

/// The limit of this name, the same for all pools of the process that name it.
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
