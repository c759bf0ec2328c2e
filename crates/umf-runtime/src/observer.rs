//! The seam between memory and whoever exports it.
//!
//! A block or region that is exported carries a flag. When a flagged one is freed, its observers are told
//! *before* the memory goes, so that they can retire the export first. What was never exported pays a test
//! of the flag, which lies in state that the free path reads anyway.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

use crate::deferred::Joined;
use crate::epoch::Epoch;
use umf_core::{Address, Freed, Result};
use umf_sync::{chunks::Chunks, failpoint};

/// Is told before exported memory goes.
pub trait ExportObserver: Send + Sync {
    /// Called in the freeing thread, before the memory can be used again. Must not allocate from or free to
    /// pools, and must not fail: whatever names the memory has to be invalid when it returns.
    ///
    /// `Some` if other processes may still use the memory: then it is not to be used again before
    /// [`Leases::is_leased`] says no.
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>>;
}

/// What other processes still use of memory that was freed. It knows that by itself: nobody has to tell it, and a process
/// that died uses nothing.
pub trait Leases: Send + Sync {
    /// Whether anything that was exported from this range and is freed by now is still open in another process. It may be
    /// asked at any time and in any thread; once it has said no it does not say yes again before something of the range is
    /// exported anew.
    fn is_leased(&self, base: Address, size: usize) -> bool;
}

struct Known(Arc<dyn ExportObserver>);

/// Where observers are; null where there is none. Nobody moves: a walk that goes on meanwhile must not miss anyone.
static PLACES: Chunks<AtomicPtr<Known>> = Chunks::new();
/// Places from here on were never used.
static END: AtomicU32 = AtomicU32::new(0);
/// Threads that walk over them.
static WALKS: Epoch = Epoch::new();

/// An observer is told what goes, until this is dropped.
///
/// Dropping waits for the calls of [`ExportObserver::before_free`] that are going on, of whatever observer: not with a lock
/// that one takes. If another observer was added before, each call of [`before_free`] reaches one of the two at least. (Dropped by an observer that is just told something, or by what that calls, it does not wait; then the
/// observer is never dropped.)
#[derive(Debug)]
#[must_use = "it observes until this is dropped"]
pub struct ObserverGuard {
    place: &'static AtomicPtr<Known>,
}

/// Adds an observer.
///
/// # Errors
/// [`umf_core::Error::OutOfMemory`] if there is no memory to keep it in mind.
pub fn register(observer: Arc<dyn ExportObserver>) -> Result<ObserverGuard> {
    let known = Box::into_raw(Box::new(Known(observer)));
    let mut index = 0;
    loop {
        let place = match PLACES.get_or_grow(index) {
            Ok(place) => place,
            Err(error) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(known) });
                return Err(error);
            }
        };
        let none = ptr::null_mut();
        if place.load(Ordering::Relaxed).is_null()
            && place.compare_exchange(none, known, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            END.fetch_max(index + 1, Ordering::AcqRel);
            return Ok(ObserverGuard { place });
        }
        index += 1;
    }
}

impl Drop for ObserverGuard {
    fn drop(&mut self) {
        // If another observer was added to take over, a walk that began before may not come to it. Such
        // a walk still finds this one.
        WALKS.wait();
        let known = self.place.swap(ptr::null_mut(), Ordering::AcqRel);
        if WALKS.wait() {
            // SAFETY: `observe` made the box and put it there; it was taken out once, and nobody who saw it there is left.
            drop(unsafe { Box::from_raw(known) });
        }
    }
}

/// Tells all observers. For pools and [`crate::tracker::Upstream`]; called for flagged memory only.
///
/// `Some` if other processes may still use the memory: a block then goes to [`crate::Upstream::defer`].
#[cold]
pub fn before_free(freed: Freed) -> Option<Arc<dyn Leases>> {
    let mut leases = Joined::default();
    let walk = WALKS.enter();
    for place in (0..END.load(Ordering::Acquire)).filter_map(|index| PLACES.get(index)) {
        if let Some(known) = NonNull::new(place.load(Ordering::Acquire)) {
            // SAFETY: seen in its place during this walk, which whoever takes it out waits for.
            if let Some(more) = unsafe { known.as_ref() }.0.before_free(freed) {
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

    /// Observers of one test are told of what another frees: one test at a time.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    struct Counting(AtomicUsize);

    impl ExportObserver for Counting {
        fn before_free(&self, _freed: Freed) -> Option<Arc<dyn Leases>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            None
        }
    }

    /// Stays in its first call until it is let go.
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
    fn nobody_is_missed_while_others_come_and_go() {
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

    /// A walk that began before the successor was added has passed its place, or does not know of it.
    #[test]
    fn handover_to_another_observer_is_seen_by_walks_under_way() {
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
            // Time for a drop that does not wait to take the place away.
            std::thread::sleep(std::time::Duration::from_millis(50));
            waiting.go.store(true, Ordering::SeqCst);
        });
        assert!(old.0.load(Ordering::SeqCst) + new.0.load(Ordering::SeqCst) > 0, "neither was told");
        drop(first);
    }
}
