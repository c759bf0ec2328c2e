//! The seam between memory and whoever exports it.
//!
//! A block or region that is exported carries a flag. When a flagged one is freed, its observers are told
//! *before* the memory goes, so that they can retire the export first. What was never exported pays a test
//! of the flag, which lies in state that the free path reads anyway.

use std::sync::{Arc, Weak};

use crate::held::Joined;
use crate::lock::Lock;
use crate::step::{Step, step};
use crate::{Address, Region};

/// What is about to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freed {
    /// A block goes back to its pool, which may hand it out again.
    Block {
        /// Its address, as the pool handed it out.
        address: Address,
    },
    /// A region goes back to its provider.
    Region(Region),
}

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

static OBSERVERS: Lock<Vec<Weak<dyn ExportObserver>>> = Lock::new(Vec::new());

/// How many observers are looked up at a time.
const AT_ONCE: usize = 4;

/// Adds an observer, for as long as an `Arc` to it exists.
pub fn observe(observer: &Arc<dyn ExportObserver>) {
    let mut observers = OBSERVERS.lock();
    let observer = Arc::downgrade(observer);
    // Into a dead one's place. Nobody moves: a walk that goes on meanwhile must not miss anyone.
    match observers.iter_mut().find(|known| known.strong_count() == 0) {
        Some(dead) => *dead = observer,
        None => observers.push(observer),
    }
}

/// Tells all observers. For pools and [`crate::tracker::Upstream`]; called for flagged memory only.
///
/// `Some` if other processes may still use the memory: a block then goes to [`crate::Upstream::hold`].
#[cold]
pub fn before_free(freed: Freed) -> Option<Arc<dyn Leases>> {
    let mut leases = Joined::default();
    let mut index = 0;
    loop {
        // A few at a time, and not under the lock: an observer may take locks of its own.
        let mut some: [Option<Arc<dyn ExportObserver>>; AT_ONCE] = [const { None }; AT_ONCE];
        let known = {
            let observers = OBSERVERS.lock();
            let rest = observers.get(index..).unwrap_or_default();
            rest.iter().zip(&mut some).for_each(|(observer, place)| *place = observer.upgrade());
            rest.len()
        };
        for observer in some.into_iter().flatten() {
            if let Some(more) = observer.before_free(freed) {
                leases.add(more);
            }
        }
        index += AT_ONCE;
        if known <= AT_ONCE {
            step(Step::ObserversTold);
            return leases.all();
        }
    }
}

/// Before a fork: taken before any pool's locks, since adding an observer may allocate from a pool that is
/// the global allocator.
pub(crate) fn lock_for_fork() {
    OBSERVERS.lock_for_fork();
}

/// # Safety
/// [`lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
pub(crate) unsafe fn unlock_after_fork() {
    // SAFETY: passed on to the caller.
    unsafe { OBSERVERS.unlock_after_fork() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
        let dead: Arc<dyn ExportObserver> = Arc::new(Counting(AtomicUsize::new(0)));
        let waiting = Arc::new(Waiting::default());
        let waiting_too: Arc<dyn ExportObserver> = waiting.clone();
        let last = Arc::new(Counting(AtomicUsize::new(0)));
        let last_too: Arc<dyn ExportObserver> = last.clone();
        observe(&dead);
        observe(&waiting_too);
        observe(&last_too);
        drop(dead);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(before_free(Freed::Block { address: Address::from_bits(1 << 40) })));
            while !waiting.inside.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let new: Arc<dyn ExportObserver> = Arc::new(Counting(AtomicUsize::new(0)));
            observe(&new);
            waiting.go.store(true, Ordering::SeqCst);
        });
        assert_eq!(last.0.load(Ordering::SeqCst), 1);
    }
}
