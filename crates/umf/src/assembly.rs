//! From settings to providers and pools, by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use umf_config::{DmaBufExporter, HugePages, NumaMode, Settings, SharedLimit as LimitSetting};
use umf_core::ProviderRef;
use umf_core::held::OnFree;
use umf_core::pool::missing;
use umf_core::{Provider, ProviderKind, Visibility};
use umf_pool_proxy::{ProxyPool, ProxySettings};
use umf_pool_slab::{SharedLimit, SlabPool, SlabSettings};
use umf_provider_dma_buf::DmaBufProvider;
use umf_provider_host::HostProvider;
use umf_runtime::checked::{CheckSettings, Checked, Leaks, Poison};
use umf_sync::Lock;

use crate::{Error, Result, leaks, registry};

pub(crate) mod cuda;
pub(crate) mod level_zero;
mod numa;

/// The provider that the settings call `name`.
pub(crate) fn provider(settings: &Settings, name: &str) -> Result<Arc<dyn Provider>> {
    let set = settings.provider_set(name).ok_or_else(|| Error::UnknownName {
        what: "provider",
        name: name.to_owned(),
        known: settings.provider.keys().cloned().collect::<Vec<_>>().join(", "),
    })?;
    let set = &*set;
    match set.kind.as_str() {
        "host" => Ok(host(name, set)?),
        "cuda" => Ok(cuda::provider(name, set)?),
        "level-zero" => Ok(level_zero::provider(name, set)?),
        "dma-buf" => Ok(dma_buf(name, set)?),
        "plugin" => loaded(name, set),
        kind => match registry::provider_factory(kind) {
            Some(make) => make(name, set),
            None => Err(Error::UnknownKind {
                what: "provider",
                name: name.to_owned(),
                kind: kind.to_owned(),
                known: registry::provider_kinds().join(", "),
            }),
        },
    }
}

fn host(name: &str, set: &umf_config::Provider) -> Result<Arc<HostProvider>> {
    let contradiction = |why| Error::Contradiction { what: "provider", name: name.to_owned(), why };
    let visibility = match set.visibility {
        umf_config::Visibility::Shared => Visibility::Shared,
        _ => Visibility::Private,
    };
    if visibility == Visibility::Private && name == "shared" {
        return Err(contradiction("this set is for shared memory: leave visibility out, or rename the set"));
    }
    if visibility == Visibility::Private && (set.isolate || set.name.is_some()) {
        return Err(contradiction("isolate and name are for shared memory: set visibility = \"shared\""));
    }
    if !set.params.is_empty() || set.path.is_some() {
        return Err(contradiction(
            "path and params are for plugins and kinds from elsewhere, not for kind \"host\"",
        ));
    }
    let size = usize::try_from(set.huge_page_size.get()).unwrap_or(0);
    let size = if size == 0 { 2 << 20 } else { size };
    let huge = match set.huge_pages {
        HugePages::Madvise => umf_provider_host::HugePages::Transparent,
        HugePages::Hugetlb => umf_provider_host::HugePages::Hugetlb { size, or_normal: false },
        HugePages::HugetlbOrNormal => umf_provider_host::HugePages::Hugetlb { size, or_normal: true },
        _ => umf_provider_host::HugePages::Normal,
    };
    let mut builder = HostProvider::builder()
        .name(name.to_owned())
        .visibility(visibility)
        .huge_pages(huge)
        .numa(numa::of(name, set)?)
        .isolate(set.isolate);
    if let Some(shared_name) = &set.name {
        builder = builder.named(format!("/{shared_name}"));
    }
    Ok(builder.build()?)
}

fn dma_buf(name: &str, set: &umf_config::Provider) -> Result<Arc<DmaBufProvider>> {
    let contradiction = |why| Error::Contradiction { what: "provider", name: name.to_owned(), why };
    if set.name.is_some()
        || set.numa != NumaMode::Default
        || !set.numa_nodes.is_empty()
        || !set.numa_space.is_empty()
    {
        return Err(contradiction("name and numa are for kind \"host\", not for kind \"dma-buf\""));
    }
    if !set.params.is_empty() || set.path.is_some() {
        return Err(contradiction(
            "path and params are for plugins and kinds from elsewhere, not for kind \"dma-buf\"",
        ));
    }
    let builder = match set.exporter {
        DmaBufExporter::Heap => DmaBufProvider::heap(&set.heap),
        _ => DmaBufProvider::udmabuf(),
    }?;
    let builder = match set.huge_pages {
        HugePages::None => builder,
        HugePages::Hugetlb => {
            let size = usize::try_from(set.huge_page_size.get()).unwrap_or(usize::MAX);
            builder.huge_page(if size == 0 { 2 << 20 } else { size })
        }
        _ => return Err(contradiction("huge_pages is \"none\" or \"hugetlb\" for kind \"dma-buf\"")),
    };
    Ok(builder.name(name.to_owned()).build()?)
}

/// A provider from a shared object.
fn loaded(name: &str, set: &umf_config::Provider) -> Result<Arc<dyn Provider>> {
    let path = set.path.as_deref().ok_or_else(|| Error::Contradiction {
        what: "provider",
        name: name.to_owned(),
        why: "kind = \"plugin\" needs path = \"/where/it/is.so\"",
    })?;
    let kind = ProviderKind::new(name).ok_or_else(|| Error::Contradiction {
        what: "provider",
        name: name.to_owned(),
        why: "the name of a plugin set stands in handles: 1 to 16 of a-z, 0-9, - and _",
    })?;
    let params = (!set.params.is_empty()).then(|| serde_json::to_value(&set.params).unwrap_or_default());
    let provider = umf_provider_plugin::load(path, set.symbol.as_deref(), params.as_ref(), kind)?;
    if let Some(import) = provider.importer() {
        registry::import(import);
    }
    Ok(provider)
}

/// The pool that the settings call `name` (its keys come from `pool.defaults` where it has none), over `provider`.
pub(crate) fn pool(
    settings: &Settings,
    name: &str,
    set: &umf_config::Pool,
    provider: ProviderRef,
) -> Result<Arc<dyn umf_core::Pool>> {
    let pool: Arc<dyn umf_core::Pool> = match set.kind.as_str() {
        "slab" => SlabPool::new(provider, slab_settings(settings, name, set)?)?,
        "proxy" => {
            let mut proxy = ProxySettings::default().name(name).memory_limit(set.memory_limit.get());
            if let LimitSetting::Named(limit) = &set.shared_limit {
                proxy = proxy.shared_limit(shared_limit(settings, limit)?);
            }
            ProxyPool::with_settings(provider, proxy)?
        }
        kind => match registry::pool_factory(kind) {
            Some(make) => make(name, set, provider)?,
            None => {
                return Err(Error::UnknownKind {
                    what: "pool",
                    name: name.to_owned(),
                    kind: kind.to_owned(),
                    known: registry::pool_kinds().join(", "),
                });
            }
        },
    };
    let pool = checked(pool, check_settings(set))?;
    holding(&*pool, set)?;
    // A kind that cannot is an error.
    if set.reserve.get() != 0 {
        let reserves = pool.reserves().ok_or(missing("reserving memory"))?;
        reserves.reserve(usize::try_from(set.reserve.get()).unwrap_or(usize::MAX))?;
    }
    Ok(pool)
}

/// The pool itself, or before it what checks its use.
pub(crate) fn checked(
    pool: Arc<dyn umf_core::Pool>,
    checks: CheckSettings,
) -> umf_core::Result<Arc<dyn umf_core::Pool>> {
    Ok(if checks.is_off() { pool } else { Checked::new(pool, checks)? })
}

fn check_settings(set: &umf_config::Pool) -> CheckSettings {
    if set.leaks == umf_config::Leaks::Sites {
        leaks::name_stacks();
    }
    CheckSettings::new()
        .history(set.history)
        .leaks(match set.leaks {
            umf_config::Leaks::Count => Leaks::Count,
            umf_config::Leaks::Sites => Leaks::Sites,
            _ => Leaks::Off,
        })
        .leak_sample(set.leak_sample)
        .poison(match set.poison {
            umf_config::Poison::Freed => Poison::Freed,
            umf_config::Poison::All => Poison::All,
            _ => Poison::Off,
        })
        .quarantine(set.quarantine.get())
}

/// Tells a pool what to do with what is freed and still open elsewhere. A kind from elsewhere that was told nothing keeps what it
/// has; one that cannot do what it is told is an error.
pub(crate) fn holding(pool: &dyn umf_core::Pool, set: &umf_config::Pool) -> Result<()> {
    let release = set.on_free == umf_config::OnFree::Release;
    if release || set.max_held.get() != 0 {
        let on_free = if release { OnFree::Release } else { OnFree::Hold };
        let controls = pool.controls().ok_or(missing("holding freed memory"))?;
        controls.set_on_free(on_free, set.max_held.get());
    }
    Ok(())
}

fn slab_settings(settings: &Settings, name: &str, set: &umf_config::Pool) -> Result<SlabSettings> {
    let bytes = |size: umf_config::ByteSize| usize::try_from(size.get()).unwrap_or(usize::MAX);
    let mut slab = SlabSettings::new()
        .name(name)
        .slab_min_size(bytes(set.slab_min_size))
        .max_poolable_size(bytes(set.max_poolable_size))
        .capacity(u32::try_from(set.capacity).unwrap_or(u32::MAX))
        .min_block_size(bytes(set.min_block_size))
        .memory_limit(set.memory_limit.get())
        .max_cached(set.max_cached.get())
        .release_after(Duration::from_millis(set.release_after_ms))
        .background(set.release_thread)
        .thread_cache_size(bytes(set.thread_cache_size))
        .thread_cache_blocks(set.thread_cache_blocks)
        .small_cache_size(bytes(set.small_cache_size))
        .shared_cache_blocks(set.shared_cache_blocks)
        .trace(set.trace);
    // The default grows with the pool; what was set does not.
    if set.shared_cache_size != umf_config::Pool::default().shared_cache_size {
        slab = slab.shared_cache_size(bytes(set.shared_cache_size));
    }
    if let LimitSetting::Named(limit) = &set.shared_limit {
        slab = slab.shared_limit(shared_limit(settings, limit)?);
    }
    Ok(slab)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_shared_is_of_shared_memory() {
        let mut set = umf_config::Provider::of_name("shared");
        assert_eq!(host("shared", &set).unwrap().visibility(), Visibility::Shared);
        set.visibility = umf_config::Visibility::Private;
        let refused = host("shared", &set).map(drop);
        assert!(matches!(refused, Err(Error::Contradiction { .. })), "{refused:?}");
        assert_eq!(host("other", &set).unwrap().visibility(), Visibility::Private);
    }
}
