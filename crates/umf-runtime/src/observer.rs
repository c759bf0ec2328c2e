//! Export observers: the hook through which exporters learn of frees.
//!
//! An exported block or region carries a flag. When flagged memory is freed, the observers are
//! called *before* it can be reused, so that they retire the export first. Memory that was never
//! exported pays a test of the flag, which lies in state that the free path reads anyway.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

use crate::deferred::Joined;
use crate::epoch::Epoch;
use umf_core::{Address, Freed, Result};
use umf_sync::{chunks::Chunks, failpoint};

/// Receives a call before exported memory is freed.
pub trait ExportObserver: Send + Sync {
    /// Retires all exports of the memory. Runs in the freeing thread before the memory can be
    /// reused. Must not allocate from or free to pools, and must not fail: no handle of the memory
    /// may be valid when this returns.
    ///
    /// Returns `Some` if other processes may still use the memory. It is then not reused before
    /// [`Leases::is_leased`] returns `false`.
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>>;
}

/// The leases of importers on freed memory. An implementation needs no message from
/// importers, and a process that died has no leases.
pub trait Leases: Send + Sync {
    /// Returns whether another process still has open what was exported from this range and is
    /// freed now. Releases what it finds to have ended. Any thread may call it at any time. After
    /// `false` it does not return `true` before part of the range is exported again.
    fn is_leased(&self, base: Address, size: usize) -> bool;
}

struct Registered(Arc<dyn ExportObserver>);

/// The observers, null in an empty entry. Entries never move, so a concurrent walk misses none.
static OBSERVERS: Chunks<AtomicPtr<Registered>> = Chunks::new();
/// Entries from here on were never used.
static END: AtomicU32 = AtomicU32::new(0);
/// Threads that walk over the observers.
static WALKS: Epoch = Epoch::new();

/// The registration of an observer, which ends when this is dropped.
///
/// Dropping waits for running calls of [`ExportObserver::before_free`] of all observers. The caller
/// must not hold a lock that one of them acquires. If a successor was registered before, each call
/// of [`before_free`] reaches at least one of the two. If an observer drops this inside of
/// `before_free`, the drop does not wait, and the observer leaks.
#[derive(Debug)]
#[must_use = "the registration ends when this is dropped"]
pub struct ObserverGuard {
    entry: &'static AtomicPtr<Registered>,
}

/// Registers an observer.
///
/// # Errors
/// [`umf_core::Error::OutOfMemory`] if there is no memory for the entry.
pub fn register(observer: Arc<dyn ExportObserver>) -> Result<ObserverGuard> {
    let registered = Box::into_raw(Box::new(Registered(observer)));
    let mut index = 0;
    loop {
        let entry = match OBSERVERS.get_or_grow(index) {
            Ok(entry) => entry,
            Err(error) => {
                // SAFETY: made above, and not shared yet.
                drop(unsafe { Box::from_raw(registered) });
                return Err(error);
            }
        };
        let none = ptr::null_mut();
        if entry.load(Ordering::Relaxed).is_null()
            && entry.compare_exchange(none, registered, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            END.fetch_max(index + 1, Ordering::AcqRel);
            return Ok(ObserverGuard { entry });
        }
        index += 1;
    }
}

impl Drop for ObserverGuard {
    fn drop(&mut self) {
        // A walk that began before a successor was registered may miss the successor. Such a walk
        // still finds this entry, and has ended after the wait.
        WALKS.wait();
        let registered = self.entry.swap(ptr::null_mut(), Ordering::AcqRel);
        if WALKS.wait() {
            // SAFETY: `register` made the box. It was unlinked once, and every walk that saw it has
            // ended.
            drop(unsafe { Box::from_raw(registered) });
        }
    }
}

/// Calls all observers. For pools and [`crate::tracker::Upstream`], for flagged memory only.
///
/// Returns `Some` if other processes may still use the memory: a block then goes to
/// [`crate::Upstream::defer`].
#[cold]
pub fn before_free(freed: Freed) -> Option<Arc<dyn Leases>> {
    let mut leases = Joined::default();
    let walk = WALKS.enter();
    for entry in (0..END.load(Ordering::Acquire)).filter_map(|index| OBSERVERS.get(index)) {
        if let Some(registered) = NonNull::new(entry.load(Ordering::Acquire)) {
            // SAFETY: loaded during this walk, and dropping the guard waits for all walks.
            if let Some(more) = unsafe { registered.as_ref() }.0.before_free(freed) {
                leases.add(more);
            }
        }
    }
    drop(walk);
    failpoint!("observers.told");
    leases.all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicUsize};

    /// Observers of one test see the frees of another: one test at a time.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    struct Counting(AtomicUsize);

    impl ExportObserver for Counting {
        fn before_free(&self, _freed: Freed) -> Option<Arc<dyn Leases>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            None
        }
    }

    /// Blocks in its first call until `go` is set.
    #[derive(Default)]
    struct Waiting {
        inside: AtomicBool,
        go: AtomicBool,
    }

    impl ExportObserver for Waiting {
        fn before_free(&self, _freed: Freed) -> Option<Arc<dyn Leases>> {
            self.inside.store(true, Ordering::SeqCst);
            while !self.go.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            None
        }
    }

    #[test]
    fn walk_reaches_observers_while_others_register_and_leave() {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dead = register(Arc::new(Counting(AtomicUsize::new(0)))).unwrap();
        let waiting = Arc::new(Waiting::default());
        let last = Arc::new(Counting(AtomicUsize::new(0)));
        let observing = [register(waiting.clone()).unwrap(), register(last.clone()).unwrap()];
        drop(dead);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(before_free(Freed::Block { address: Address::from_bits(1 << 40) })));
            while !waiting.inside.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let new = register(Arc::new(Counting(AtomicUsize::new(0)))).unwrap();
            waiting.go.store(true, Ordering::SeqCst);
            // Waits for the walk.
            drop(new);
        });
        assert_eq!(last.0.load(Ordering::SeqCst), 1);
        drop(observing);
        assert_eq!((Arc::strong_count(&waiting), Arc::strong_count(&last)), (1, 1));
    }

    /// A walk that began before the successor was registered has passed its entry, or does
    /// not see it.
    #[test]
    fn walk_during_handover_reaches_one_of_both_observers() {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (waiting, old) = (Arc::new(Waiting::default()), Arc::new(Counting(AtomicUsize::new(0))));
        let new = Arc::new(Counting(AtomicUsize::new(0)));
        let first = register(waiting.clone()).unwrap();
        let observing = register(old.clone()).unwrap();
        let added = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(before_free(Freed::Block { address: Address::from_bits(2 << 40) })));
            while !waiting.inside.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                let successor = register(new.clone()).unwrap();
                added.store(true, Ordering::SeqCst);
                drop(observing);
                drop(successor);
            });
            while !added.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Time in which a drop that does not wait would clear the entry.
            std::thread::sleep(std::time::Duration::from_millis(50));
            waiting.go.store(true, Ordering::SeqCst);
        });
        assert!(
            old.0.load(Ordering::SeqCst) + new.0.load(Ordering::SeqCst) > 0,
            "neither observer was called"
        );
        drop(first);
    }
}
