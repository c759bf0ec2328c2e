//! Tests for the optional abilities of a pool, each of which must be reported correctly; and cases
//! about reserving memory.

use std::sync::Arc;

use super::{
    AddressOnlyProvider, MakePool, ManualCompletion, MmapProvider, allocate, deferred, free, reserves,
};
use umf_core::Error;
use umf_runtime::tracker;

/// Prints a line if the pool lacks an ability.
fn report(name: &str, lack: &str, has_it: bool) -> bool {
    if !has_it {
        println!("skipped for pool {name:?}: {lack}");
    }
    has_it
}

/// Returns whether the pool has deferred frees. If not, the tracker must refuse such a free without
/// effect.
pub fn has_deferred_free(make: MakePool<'_>) -> bool {
    let pool = make(MmapProvider::private().into());
    let can = pool.deferred_free().is_some() && pool.controls().is_some();
    if pool.deferred_free().is_none() {
        let block = allocate(&*pool, 64);
        // SAFETY: a block of the suite that is not used.
        let refused = unsafe { tracker::free_after(block, ManualCompletion::new()) };
        assert!(matches!(refused, Err(Error::NotSupported { .. })), "{refused:?}");
        free(&*pool, block);
    }
    report(pool.name(), "it does not defer frees", can)
}

/// Returns whether the pool frees blocks with a completion. If not, the free must be refused with
/// [`Error::NotSupported`] and without effect.
pub fn has_free_after(make: MakePool<'_>) -> bool {
    if !has_deferred_free(make) {
        return false;
    }
    let pool = make(MmapProvider::private().into());
    let (block, completion) = (allocate(&*pool, 64), ManualCompletion::new());
    completion.set_ready();
    // SAFETY: a block of the suite that is not used.
    match unsafe { deferred(&*pool).free_after(block, completion.clone()) } {
        Err(Error::NotSupported { .. }) => {
            assert!(pool.block_at(block).is_ok(), "a refused `free_after` freed the block");
            assert_eq!(Arc::strong_count(&completion), 1, "a refused `free_after` kept the completion");
            free(&*pool, block);
            report(pool.name(), "it does not free with a completion", false)
        }
        freed => {
            freed.unwrap_or_else(|error| panic!("`free_after` of a live block: {error}"));
            true
        }
    }
}

/// Returns whether the pool calls an out-of-memory callback. If not, setting it must be refused
/// with [`Error::NotSupported`].
pub fn has_out_of_memory_callback(make: MakePool<'_>) -> bool {
    let pool = make(MmapProvider::private().into());
    let Some(controls) = pool.controls() else { return report(pool.name(), "it has no controls", false) };
    match controls.set_on_out_of_memory(None) {
        Err(Error::NotSupported { .. }) => report(pool.name(), "it has no out-of-memory callback", false),
        set => {
            set.unwrap_or_else(|error| panic!("removing the out-of-memory callback: {error}"));
            true
        }
    }
}

/// Returns whether the pool can reserve memory.
pub fn has_reserve(make: MakePool<'_>) -> bool {
    let pool = make(MmapProvider::private().into());
    report(pool.name(), "it does not reserve memory", pool.reserves().is_some())
}

const MIB: usize = 1 << 20;

/// Reserved memory is populated before the first allocation, serves allocations without the
/// provider, and is kept until a trim.
pub fn reserved_memory_is_populated_and_kept(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let added = reserves(&*pool).reserve(24 * MIB).expect("the provider has memory");
    assert!(added >= 23 * MIB, "{added}");
    let reserved = pool.statistics().reserved_bytes;
    assert_eq!((reserved, pool.statistics().cached_bytes), (provider.live_bytes() as u64, reserved));
    assert!(reserved >= 24 * MIB as u64);
    assert_eq!(provider.populated_bytes(), reserved, "every reserved page is populated");
    assert_eq!(reserves(&*pool).reserve(24 * MIB), Ok(0), "a second reserve of the same size does nothing");
    let calls = provider.allocations();
    for size in [64, 5000, 60_000] {
        let block = allocate(&*pool, size);
        let whole = pool.block_at(block).expect("live").size;
        free(&*pool, block);
        for _ in 0..3 {
            let blocks: Vec<_> = (0..12 * MIB / whole).map(|_| allocate(&*pool, size)).collect();
            blocks.into_iter().for_each(|address| free(&*pool, address));
        }
        assert!(
            pool.statistics().reserved_bytes >= reserved,
            "blocks of {size} bytes: reserved memory was freed"
        );
    }
    assert_eq!(provider.allocations(), calls, "the provider was called again");
    let more = reserves(&*pool).reserve(40 * MIB).expect("the provider has memory");
    assert!(more >= 15 * MIB && pool.statistics().reserved_bytes >= 40 * MIB as u64);
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!((provider.live_regions(), pool.statistics().reserved_bytes), (0, 0));
    // After the trim nothing is reserved: a few regions at most stay cached.
    let blocks: Vec<_> = (0..32 * MIB / 60_000).map(|_| allocate(&*pool, 60_000)).collect();
    blocks.into_iter().for_each(|address| free(&*pool, address));
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

/// A reserve that fails has no effect.
pub fn failed_reserve_changes_nothing(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let kept = allocate(&*pool, 5000);
    let before = (provider.live_regions(), provider.live_bytes(), pool.statistics().reserved_bytes);
    for failing in 0..3 {
        provider.fail_after(Some(failing));
        // Fails at the first region or after some were allocated.
        let refused = reserves(&*pool).reserve(usize::MAX >> 8);
        assert!(
            matches!(refused, Err(Error::OutOfMemory { .. } | Error::SizeOverflow { .. })),
            "{refused:?}"
        );
        assert_eq!(
            (provider.live_regions(), provider.live_bytes(), pool.statistics().reserved_bytes),
            before
        );
    }
    provider.fail_after(None);
    provider.set_populate_fails(true);
    let refused = reserves(&*pool).reserve(64 * MIB);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    assert_eq!((provider.live_regions(), provider.live_bytes(), pool.statistics().reserved_bytes), before);
    // Regions that the provider refuses to free stay with the pool.
    provider.refuse_frees(true);
    let refused = reserves(&*pool).reserve(64 * MIB);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    provider.refuse_frees(false);
    // A failed reserve leaves no target behind.
    provider.set_populate_fails(false);
    free(&*pool, kept);
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!((provider.live_regions(), pool.statistics().reserved_bytes), (0, 0));
}
