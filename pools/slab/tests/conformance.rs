//! The conformance suite, against slab pools of several settings.

use umf_pool_proxy::ProxyPool;
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_runtime::checked::{CheckSettings, Checked, Leaks};

umf_testkit::pool_conformance!(defaults, |provider| SlabPool::new(provider, SlabSettings::new()).unwrap());

umf_testkit::pool_conformance!(coarse, |provider| {
    let settings = SlabSettings::new().min_block_size(256).slab_min_size(1 << 20).capacity(0);
    SlabPool::new(provider, settings.max_poolable_size(16 << 20)).unwrap()
});

umf_testkit::pool_conformance!(without_thread_caches_for_large_blocks, |provider| {
    SlabPool::new(provider, SlabSettings::new().thread_cache_size(0).max_poolable_size(100_000)).unwrap()
});

umf_testkit::pool_conformance!(nothing_poolable, |provider| {
    SlabPool::new(provider, SlabSettings::new().max_poolable_size(0)).unwrap()
});

umf_testkit::pool_conformance!(with_a_history_and_sites, |provider| {
    let checks = CheckSettings::new().history(1000).leaks(Leaks::Sites).leak_sample(64);
    Checked::new(SlabPool::new(provider, SlabSettings::new()).unwrap(), checks).unwrap()
});

umf_testkit::pool_conformance!(with_a_quarantine, |provider| {
    let pool = SlabPool::new(provider, SlabSettings::new().min_block_size(4096)).unwrap();
    Checked::new(pool, CheckSettings::new().quarantine(64 << 10)).unwrap()
});

umf_testkit::pool_conformance!(a_checked_proxy_pool, |provider| {
    let checks = CheckSettings::new().history(1000).leaks(Leaks::Count);
    Checked::new(ProxyPool::new(provider).unwrap(), checks).unwrap()
});
