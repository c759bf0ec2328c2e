//! Cases about the out-of-memory callback.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::threads::join;
use super::{AddressOnlyProvider, MakePool, Random, allocate, controls, free, layout, try_free};
use umf_core::out_of_memory::{ATTEMPTS, OnOutOfMemory, OutOfMemoryAction, OutOfMemoryEvent};
use umf_core::{Address, Error, Pool, Reuse};

const SIZES: [usize; 4] = [64, 5000, 100_000, 10 << 20];

fn set_callback(
    pool: &dyn Pool,
    callback: impl Fn(&OutOfMemoryEvent<'_>) -> OutOfMemoryAction + Send + Sync + 'static,
) {
    let set = controls(pool).set_on_out_of_memory(Some(Arc::new(callback)));
    set.expect("the pool has a callback");
}

fn remove_callback(pool: &dyn Pool) {
    controls(pool).set_on_out_of_memory(None).expect("the pool has a callback");
}

/// Allocates until pool and provider have no more memory.
fn exhaust(pool: &dyn Pool, provider: &AddressOnlyProvider, size: usize) -> Vec<Address> {
    provider.fail_after(Some(0));
    let mut live = Vec::new();
    while let Ok(address) = pool.allocate(layout(size, 1)) {
        live.push(address);
        assert!(live.len() < 1_000_000);
    }
    live
}

/// The callback learns which allocation failed and what the pool holds. The allocation succeeds
/// once it has freed enough.
pub fn out_of_memory_callback_can_free_and_retry(make: MakePool<'_>) {
    for size in SIZES {
        let provider = AddressOnlyProvider::new(4096);
        let pool = make(provider.clone().into());
        let first = allocate(&*pool, size);
        let live = exhaust(&*pool, &provider, size);
        let blocks = Arc::new(Mutex::new(live));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (from, notes) = (blocks.clone(), seen.clone());
        // One block stays live, so such a pool reuses nothing that the callback frees.
        let reuses = pool.reuse() == Reuse::EachBlock;
        set_callback(&*pool, move |event| {
            let number = (event.layout, event.attempt, event.error, event.statistics.live_blocks);
            notes.lock().expect("no thread panics").push(number);
            match from.lock().expect("no thread panics").pop() {
                Some(address) => {
                    free(event.pool, address);
                    if !reuses {
                        provider.fail_after(None);
                    }
                }
                None if event.attempt == 1 => provider.fail_after(None),
                None => return OutOfMemoryAction::GiveUp,
            }
            OutOfMemoryAction::Retry
        });
        let all = blocks.lock().expect("no thread panics").len() as u64 + 1;
        let wanted = layout(size, 8);
        let address = pool.allocate(wanted).unwrap_or_else(|error| panic!("{size} bytes: {error}"));
        let seen = seen.lock().expect("no thread panics").clone();
        let &(requested, attempt, error, live) = seen.first().expect("the callback was called");
        assert_eq!((requested, attempt, live), (wanted, 1, all), "{size} bytes");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!(seen.iter().zip(1..).all(|(&(_, attempt, ..), expected)| attempt == expected));
        free(&*pool, address);
        free(&*pool, first);
        remove_callback(&*pool);
        blocks.lock().expect("no thread panics").drain(..).for_each(|address| free(&*pool, address));
    }
}

/// A callback that always retries is called a bounded number of times; one that gives up, once. The
/// error is the pool's own.
pub fn out_of_memory_callback_is_called_bounded_times(make: MakePool<'_>) {
    for size in SIZES {
        for (relief, most) in [(OutOfMemoryAction::Retry, ATTEMPTS), (OutOfMemoryAction::GiveUp, 1)] {
            let provider = AddressOnlyProvider::new(4096);
            let pool = make(provider.clone().into());
            let asked = Arc::new(AtomicU32::new(0));
            let count = asked.clone();
            let live = exhaust(&*pool, &provider, size);
            set_callback(&*pool, move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                relief
            });
            let refused = pool.allocate(layout(size, 1));
            assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
            assert_eq!(asked.load(Ordering::Relaxed), most, "{size} bytes, {relief:?}");
            // An error other than a lack of memory does not call it.
            let refused = pool.allocate(layout(1, 1 << 40));
            assert!(refused.is_err());
            live.into_iter().for_each(|address| free(&*pool, address));
        }
    }
}

/// The callback may use its pool, be replaced meanwhile, and panic. The pool stays usable.
pub fn out_of_memory_callback_may_use_pool(make: MakePool<'_>) {
    for size in SIZES {
        let provider = AddressOnlyProvider::new(4096);
        let pool = make(provider.clone().into());
        let live = exhaust(&*pool, &provider, size);
        let nested = Arc::new(AtomicU32::new(0));
        let count = nested.clone();
        set_callback(&*pool, move |event| {
            assert_eq!(count.fetch_add(1, Ordering::Relaxed), 0, "it is asked for what fails in it");
            let pool = event.pool;
            // Fails, without a nested call of the callback.
            assert!(pool.allocate(layout(64 << 20, 1)).is_err());
            assert!(pool.trim(0).is_ok());
            assert_eq!(pool.statistics(), event.statistics);
            set_callback(pool, |_| std::panic::resume_unwind(Box::new("the callback panics")));
            assert!(pool.allocate(layout(64 << 20, 1)).is_err());
            OutOfMemoryAction::Retry
        });
        // The second failure calls the new callback.
        let refused = pool.allocate(layout(size, 1));
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
        assert_eq!(nested.load(Ordering::Relaxed), 1);
        provider.fail_after(None);
        let address = allocate(&*pool, size);
        free(&*pool, address);
        live.into_iter().for_each(|address| free(&*pool, address));
        remove_callback(&*pool);
        pool.trim(0).expect("the provider frees all regions");
        assert_eq!((provider.live_regions(), pool.statistics().live_blocks), (0, 0));
    }
}

/// A callback that frees one of its blocks.
struct SharedBlocks(Mutex<Vec<Address>>);

impl OnOutOfMemory for SharedBlocks {
    fn out_of_memory(&self, event: &OutOfMemoryEvent<'_>) -> OutOfMemoryAction {
        let Some(address) = self.0.lock().expect("no thread panics").pop() else {
            return OutOfMemoryAction::GiveUp;
        };
        free(event.pool, address);
        OutOfMemoryAction::Retry
    }
}

/// Four threads run out of memory at the same time. The callback frees blocks of a
/// shared list: none is lost or used twice.
pub fn concurrent_threads_share_one_callback(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let blocks = Arc::new(SharedBlocks(Mutex::new((0..200).map(|_| allocate(&*pool, 100_000)).collect())));
    controls(&*pool).set_on_out_of_memory(Some(blocks.clone())).expect("the pool has a callback");
    provider.fail_after(Some(0));
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pool, blocks, failed) = (&*pool, &blocks, &failed);
        let work = |seed| {
            move || {
                let mut random = Random(seed);
                for _ in 0..150 {
                    let is_expected = match pool.allocate(layout(random.size(17), 1)) {
                        Ok(address) if random.below(3) == 0 => {
                            blocks.0.lock().expect("no thread panics").push(address);
                            true
                        }
                        Ok(address) => try_free(pool, address).is_ok(),
                        Err(error) => matches!(error, Error::OutOfMemory { .. }),
                    };
                    if !is_expected {
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        join((0..4).map(|seed| scope.spawn(work(seed))).collect());
    });
    assert!(!failed.load(Ordering::Relaxed), "an error other than OutOfMemory");
    let left = core::mem::take(&mut *blocks.0.lock().expect("no thread panics"));
    assert_eq!(pool.statistics().live_blocks, left.len() as u64);
    left.into_iter().for_each(|address| free(&*pool, address));
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}
