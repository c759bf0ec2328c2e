//! Cases about invalid frees, and about announcements of frees.

use std::sync::{Arc, Barrier, Mutex, PoisonError};

use super::{AddressOnlyProvider, MakePool, allocate, at, free, mark_exported, try_free};
use umf_core::Freed;
use umf_core::{Address, Error, Pool};
use umf_runtime::observer::{self, ExportObserver, Leases};

/// Frees and looks up an address that does not start a live block, and checks that this has no
/// effect.
fn refused(pool: &dyn Pool, address: Address, expected: impl Fn(&Error) -> bool) {
    let before = pool.statistics();
    let marked = pool.deferred_free().map(|deferred| deferred.mark_exported(address));
    for result in [Some(try_free(pool, address)), marked].into_iter().flatten() {
        assert!(result.as_ref().is_err_and(&expected), "{address}: {result:?}");
    }
    let after = pool.statistics();
    assert_eq!((before.live_blocks, before.live_bytes), (after.live_blocks, after.live_bytes));
    assert_eq!(before.frees, after.frees);
}

const fn is_foreign(error: &Error) -> bool {
    matches!(error, Error::ForeignAddress { .. })
}

const fn is_interior(error: &Error) -> bool {
    matches!(error, Error::InteriorAddress { .. })
}

/// Returns whether the error reports `address` as not allocated, with or without history.
pub(super) fn is_not_allocated(error: &Error, address: Address) -> bool {
    match *error {
        Error::NotAllocated { address: freed } | Error::FreedTwice { address: freed, .. } => freed == address,
        _ => false,
    }
}

/// Returns whether the address is not live. The region of a free block may be gone, so the tracker
/// may not know the address.
pub(super) const fn is_not_live(error: &Error) -> bool {
    matches!(error, Error::NotAllocated { .. } | Error::FreedTwice { .. } | Error::ForeignAddress { .. })
}

/// Addresses of other pools, inside blocks, past blocks, freed, or never allocated: each is refused
/// with the right error, without effect.
pub fn free_of_invalid_address_is_refused(make: MakePool<'_>) {
    let (provider, other) = (AddressOnlyProvider::new(4096), AddressOnlyProvider::new(4096));
    let pool = make(provider.clone().into());
    let other_pool = make(other.into());
    let foreign = allocate(&*other_pool, 100);
    refused(&*pool, foreign, is_foreign);
    assert!(pool.block_at(foreign).is_err_and(|error| is_foreign(&error)));
    let nowhere = Address::in_space(foreign.space(), 1 << 50).expect("fits");
    refused(&*pool, nowhere, is_foreign);
    for size in [1, 24, 100, 4096, 5000, 70_000, 1 << 20, 10 << 20] {
        let address = allocate(&*pool, size);
        let block = pool.block_at(address).expect("live");
        for inside in [1, 4, 8, 64, 4096, 8192, 65_536, block.size as u64 - 1] {
            if inside > 0 && inside < block.size as u64 {
                refused(&*pool, at(address, inside), is_interior);
            }
        }
        refused(&*other_pool, address, is_foreign);
        refused(&*pool, at(address, block.size as u64), is_not_live);
        // No other block near it is live.
        for offset in (0..1 << 20).step_by(4096 - 8) {
            let probe = at(address, block.size as u64 + offset);
            refused(&*pool, probe, is_not_live);
            assert!(pool.block_at(probe).is_err_and(|error| is_not_live(&error)));
        }
        assert_eq!(pool.block_at(address), Ok(block), "the block is unchanged");
        free(&*pool, address);
        refused(&*pool, address, is_not_live);
        assert!(pool.block_at(address).is_err_and(|error| is_not_live(&error)));
    }
    free(&*other_pool, foreign);
    refused(&*other_pool, foreign, is_not_live);
}

/// Of two concurrent frees of a block exactly one succeeds, for each size.
pub fn concurrent_double_free_succeeds_once(make: MakePool<'_>) {
    let pool = make(AddressOnlyProvider::new(4096).into());
    for size in [64, 5000, 100_000, 10 << 20] {
        let current = Mutex::new(None);
        let (begin, end) = (Barrier::new(3), Barrier::new(3));
        let successes = Mutex::new(0);
        const ROUNDS: usize = 1_000;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        begin.wait();
                        let address = current.lock().unwrap_or_else(PoisonError::into_inner).expect("set");
                        match try_free(&*pool, address) {
                            Ok(()) => *successes.lock().unwrap_or_else(PoisonError::into_inner) += 1,
                            Err(error) => assert!(is_not_live(&error), "{error:?}"),
                        }
                        end.wait();
                    }
                });
            }
            for round in 1..=ROUNDS {
                let address = allocate(&*pool, size);
                *current.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
                begin.wait();
                end.wait();
                assert_eq!(*successes.lock().unwrap_or_else(PoisonError::into_inner), round);
            }
        });
        assert_eq!(pool.statistics().live_blocks, 0);
    }
}

#[derive(Default)]
struct Recorder {
    freed: Mutex<Vec<Address>>,
}

impl Recorder {
    fn count(&self, wanted: Address) -> usize {
        let freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        freed.iter().filter(|&&address| address == wanted).count()
    }
}

impl ExportObserver for Recorder {
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>> {
        if let Freed::Block { address } = freed {
            self.freed.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        }
        None
    }
}

/// The free of an exported block is announced once, before the block is reused. Other frees are not
/// announced.
pub fn exported_blocks_are_announced_once(make: MakePool<'_>) {
    let recorder = Arc::new(Recorder::default());
    let _observing = observer::register(recorder.clone()).expect("there is memory");
    for size in [64, 5000, 100_000, 10 << 20] {
        let pool = make(AddressOnlyProvider::new(4096).into());
        // Another pool may have used these addresses before.
        recorder.freed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let address = allocate(&*pool, size);
        let quiet = allocate(&*pool, size);
        mark_exported(&*pool, address).expect("the block is live");
        mark_exported(&*pool, address).expect("a second mark has no effect");
        assert_eq!(recorder.count(address), 0);
        free(&*pool, address);
        assert_eq!(recorder.count(address), 1);
        assert!(try_free(&*pool, address).is_err());
        assert!(mark_exported(&*pool, address).is_err());
        free(&*pool, quiet);
        assert_eq!((recorder.count(address), recorder.count(quiet)), (1, 0));
        // The mark ends with the block.
        for round in 0..100 {
            let again = allocate(&*pool, size);
            let before = recorder.count(again);
            if round % 2 == 0 {
                mark_exported(&*pool, again).expect("live");
            }
            free(&*pool, again);
            assert_eq!(recorder.count(again), before + usize::from(round % 2 == 0));
        }
        // Dropping a pool announces its exported blocks.
        let left = allocate(&*pool, size);
        let before = recorder.count(left);
        mark_exported(&*pool, left).expect("live");
        drop(pool);
        assert_eq!(recorder.count(left), before + 1);
    }
}
