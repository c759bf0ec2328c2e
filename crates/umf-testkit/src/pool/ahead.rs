//! Reserving ahead, for pools that can.

use super::{Make, Numbers, allocate, free, reserves};
use umf_core::Error;

const MIB: usize = 1 << 20;

/// What is reserved is there, with its pages, before the first block; it serves without the provider, and stays until it is trimmed.
pub fn reserved_memory_is_there_and_stays(make: Make<'_>) {
    let provider = Numbers::new(4096);
    let pool = make(provider.clone().into());
    let came = reserves(&*pool).reserve(24 * MIB).expect("the provider has memory");
    assert!(came >= 23 * MIB, "{came}");
    let reserved = pool.statistics().reserved_bytes;
    assert_eq!((reserved, pool.statistics().cached_bytes), (provider.live_bytes() as u64, reserved));
    assert!(reserved >= 24 * MIB as u64);
    assert_eq!(provider.populated_bytes(), reserved, "every page is made ahead");
    assert_eq!(reserves(&*pool).reserve(24 * MIB), Ok(0), "twice is once");
    let calls = provider.allocations();
    for size in [64, 5000, 60_000] {
        let block = allocate(&*pool, size);
        let whole = pool.block_at(block).expect("live").size;
        free(&*pool, block);
        for _ in 0..3 {
            let blocks: Vec<_> = (0..12 * MIB / whole).map(|_| allocate(&*pool, size)).collect();
            blocks.into_iter().for_each(|address| free(&*pool, address));
        }
        assert!(pool.statistics().reserved_bytes >= reserved, "blocks of {size} bytes: some of it went");
    }
    assert_eq!(provider.allocations(), calls, "the provider was asked again");
    let more = reserves(&*pool).reserve(40 * MIB).expect("the provider has memory");
    assert!(more >= 15 * MIB && pool.statistics().reserved_bytes >= 40 * MIB as u64);
    pool.trim(0).expect("the provider takes everything back");
    assert_eq!((provider.live_regions(), pool.statistics().reserved_bytes), (0, 0));
    // Nothing is reserved any more: one region, or little more, is all that stays of what comes and goes.
    let blocks: Vec<_> = (0..32 * MIB / 60_000).map(|_| allocate(&*pool, 60_000)).collect();
    blocks.into_iter().for_each(|address| free(&*pool, address));
    pool.trim(0).expect("the provider takes everything back");
    assert_eq!(provider.live_regions(), 0);
}

/// Where there is not enough nothing comes, and the pool is as it was.
pub fn reserving_too_much_changes_nothing(make: Make<'_>) {
    let provider = Numbers::new(4096);
    let pool = make(provider.clone().into());
    let kept = allocate(&*pool, 5000);
    let before = (provider.live_regions(), provider.live_bytes(), pool.statistics().reserved_bytes);
    for failing in 0..3 {
        provider.fail_after(Some(failing));
        // In one piece, or in many of which some come: not all of it.
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
    provider.be_full(true);
    let refused = reserves(&*pool).reserve(64 * MIB);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    assert_eq!((provider.live_regions(), provider.live_bytes(), pool.statistics().reserved_bytes), before);
    // What the provider does not take back then is not lost.
    provider.refuse_frees(true);
    let refused = reserves(&*pool).reserve(64 * MIB);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    provider.refuse_frees(false);
    // What was not to be had is not kept in mind either.
    provider.be_full(false);
    free(&*pool, kept);
    pool.trim(0).expect("the provider takes everything back");
    assert_eq!((provider.live_regions(), pool.statistics().reserved_bytes), (0, 0));
}
