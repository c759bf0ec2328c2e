//! What must be refused, and what must be announced.

use std::sync::{Arc, Barrier, Mutex, PoisonError};

use super::{Make, Numbers, allocate, at, free, mark_exported, try_free};
use umf_core::Freed;
use umf_core::{Address, Error, Pool};
use umf_runtime::observer::{self, ExportObserver, Leases};

/// Frees and looks up an address that is no start of a live block, and checks that nothing came of it.
fn refused(pool: &dyn Pool, address: Address, expected: impl Fn(&Error) -> bool) {
    let before = pool.statistics();
    for result in [try_free(pool, address), mark_exported(pool, address)] {
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

/// Says of an address that it is no live block's: with what a history knows, if there is one.
pub(super) fn is_not_allocated(error: &Error, address: Address) -> bool {
    match *error {
        Error::NotAllocated { address: told } | Error::FreedTwice { address: told, .. } => told == address,
        _ => false,
    }
}

/// Once a block is free its region may be gone: then nobody knows the address any more.
pub(super) const fn is_not_live(error: &Error) -> bool {
    matches!(error, Error::NotAllocated { .. } | Error::FreedTwice { .. } | Error::ForeignAddress { .. })
}

/// Addresses of others, inside blocks, past blocks, freed or never allocated: the right error, and no change.
pub fn every_other_address_is_refused(make: Make<'_>) {
    let (provider, other) = (Numbers::new(4096), Numbers::new(4096));
    let pool = make(provider.clone().into());
    let stranger = make(other.into());
    let foreign = allocate(&*stranger, 100);
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
        refused(&*stranger, address, is_foreign);
        refused(&*pool, at(address, block.size as u64), is_not_live);
        // All around it, nothing else is live.
        for offset in (0..1 << 20).step_by(4096 - 8) {
            let probe = at(address, block.size as u64 + offset);
            refused(&*pool, probe, is_not_live);
            assert!(pool.block_at(probe).is_err_and(|error| is_not_live(&error)));
        }
        assert_eq!(pool.block_at(address), Ok(block), "the block is as it was");
        free(&*pool, address);
        refused(&*pool, address, is_not_live);
        assert!(pool.block_at(address).is_err_and(|error| is_not_live(&error)));
    }
    free(&*stranger, foreign);
    refused(&*stranger, foreign, is_not_live);
}

/// Of two threads that free the same block at the same time one succeeds, whatever the size.
pub fn of_two_frees_one_succeeds(make: Make<'_>) {
    let pool = make(Numbers::new(4096).into());
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

/// A flagged block is announced when it is freed, once, before it is handed out again; an unflagged one is not.
pub fn exported_blocks_are_announced_once(make: Make<'_>) {
    let recorder = Arc::new(Recorder::default());
    let _observing = observer::register(recorder.clone()).expect("there is memory");
    for size in [64, 5000, 100_000, 10 << 20] {
        let pool = make(Numbers::new(4096).into());
        // Others had its space before it.
        recorder.freed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let address = allocate(&*pool, size);
        let quiet = allocate(&*pool, size);
        mark_exported(&*pool, address).expect("the block is live");
        mark_exported(&*pool, address).expect("flagging twice is one flag");
        assert_eq!(recorder.count(address), 0);
        free(&*pool, address);
        assert_eq!(recorder.count(address), 1);
        assert!(try_free(&*pool, address).is_err());
        assert!(mark_exported(&*pool, address).is_err());
        free(&*pool, quiet);
        assert_eq!((recorder.count(address), recorder.count(quiet)), (1, 0));
        // The flag does not stick to the address.
        for round in 0..100 {
            let again = allocate(&*pool, size);
            let before = recorder.count(again);
            if round % 2 == 0 {
                mark_exported(&*pool, again).expect("live");
            }
            free(&*pool, again);
            assert_eq!(recorder.count(again), before + usize::from(round % 2 == 0));
        }
        // A pool that goes announces what is left.
        let left = allocate(&*pool, size);
        let before = recorder.count(left);
        mark_exported(&*pool, left).expect("live");
        drop(pool);
        assert_eq!(recorder.count(left), before + 1);
    }
}
