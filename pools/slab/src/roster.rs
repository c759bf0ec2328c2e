//! Which pools a thread that ends has to give its blocks back to.
//!
//! A fixed table without a lock: a thread's end may not wait for a fork that waits for a pool.

use core::cell::Cell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use umf_core::fork::{self, ForkAware};
use umf_core::thread::{self, ThreadIndex};
use umf_core::{Error, Result};

use crate::SlabPool;

const LIMIT: usize = 4096;

struct Place {
    pool: AtomicPtr<SlabPool>,
    /// Threads that use the pool without owning it.
    visitors: AtomicU32,
}

static PLACES: [Place; LIMIT] =
    [const { Place { pool: AtomicPtr::new(ptr::null_mut()), visitors: AtomicU32::new(0) } }; LIMIT];
/// Places from here on were never used.
static END: AtomicU32 = AtomicU32::new(0);

/// A pool that the thread is visiting. Lies on its stack.
struct Visiting {
    place: &'static Place,
    /// What it was visiting before, and is still.
    outer: *const Self,
}

thread_local! {
    /// What the thread is visiting, the latest first.
    static VISITING: Cell<*const Visiting> = const { Cell::new(ptr::null()) };
}

/// Runs `look`, with the calling thread announced at the place.
fn announced(place: &'static Place, look: impl FnOnce()) {
    struct Announced<'v>(&'v Visiting);

    impl Drop for Announced<'_> {
        fn drop(&mut self) {
            VISITING.set(self.0.outer);
            self.0.place.visitors.fetch_sub(1, Ordering::SeqCst);
        }
    }

    let visiting = Visiting { place, outer: VISITING.get() };
    place.visitors.fetch_add(1, Ordering::SeqCst);
    VISITING.set(&raw const visiting);
    let _announced = Announced(&visiting);
    look();
}

/// Visitors that were at work in the parent do not exist in the child, apart from the thread that forked.
struct Visitors;

impl ForkAware for Visitors {
    fn prepare(&self) {}
    fn parent(&self) {}
    fn child(&self) {
        for place in &PLACES[..END.load(Ordering::Relaxed) as usize] {
            place.visitors.store(0, Ordering::Relaxed);
        }
        let mut next = VISITING.get();
        // SAFETY: what this thread is visiting lies on its stack until it leaves, when it is taken out of the list.
        while let Some(visiting) = unsafe { next.as_ref() } {
            visiting.place.visitors.fetch_add(1, Ordering::Relaxed);
            next = visiting.outer;
        }
    }
}

/// Enters a pool.
///
/// # Errors
/// [`Error::TooMany`] past 4096 pools, and where nothing more can take part in forks or be told of ending threads.
///
/// # Safety
/// The pool stays where it is until [`leave`] returned.
pub(crate) unsafe fn enter(pool: NonNull<SlabPool>) -> Result<()> {
    static ARE_REGISTERED: AtomicBool = AtomicBool::new(false);
    thread::on_exit(flush)?;
    fork::register_static(&Visitors, &ARE_REGISTERED)?;
    for (index, place) in PLACES.iter().enumerate() {
        if place.pool.load(Ordering::Relaxed).is_null()
            && place
                .pool
                .compare_exchange(ptr::null_mut(), pool.as_ptr(), Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        {
            END.fetch_max(index as u32 + 1, Ordering::SeqCst);
            return Ok(());
        }
    }
    Err(Error::TooMany { what: "slab pools", limit: LIMIT })
}

/// Takes a pool out, and waits for those who are using it.
pub(crate) fn leave(pool: NonNull<SlabPool>) {
    for place in &PLACES[..END.load(Ordering::SeqCst) as usize] {
        if place
            .pool
            .compare_exchange(pool.as_ptr(), ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
        {
            while place.visitors.load(Ordering::SeqCst) != 0 {
                std::thread::yield_now();
            }
            return;
        }
    }
}

/// Shows one pool, unless it is going. `look` must not drop it.
pub(crate) fn visit_one(pool: NonNull<SlabPool>, look: impl FnOnce()) {
    let places = &PLACES[..END.load(Ordering::SeqCst) as usize];
    if let Some(place) = places.iter().find(|place| place.pool.load(Ordering::Relaxed) == pool.as_ptr()) {
        announced(place, || {
            if place.pool.load(Ordering::SeqCst) == pool.as_ptr() {
                look();
            }
        });
    }
}

/// Shows every pool that is there, one after the other. `look` drops none.
pub(crate) fn visit(mut look: impl FnMut(&SlabPool)) {
    for place in &PLACES[..END.load(Ordering::SeqCst) as usize] {
        if place.pool.load(Ordering::Relaxed).is_null() {
            continue;
        }
        // Announced before the pool is looked at: `leave` takes the pool out before it looks at the visitors.
        announced(place, || {
            if let Some(pool) = NonNull::new(place.pool.load(Ordering::SeqCst)) {
                // SAFETY: the pool stays until `leave`, which waits for this visitor.
                look(unsafe { pool.as_ref() });
            }
        });
    }
}

thread_local! {
    static IS_THREAD_ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread has given back what it kept, or does so now. Subscribers of events
/// may not work any more.
pub(crate) fn is_thread_ending() -> bool {
    IS_THREAD_ENDING.get()
}

/// A thread ends: every pool takes back what it keeps.
fn flush(index: ThreadIndex) {
    IS_THREAD_ENDING.set(true);
    visit(|pool| pool.flush_thread(index));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlabSettings;
    use std::sync::Barrier;
    use umf_core::conformance::pool::Numbers;

    #[test]
    fn a_child_that_is_forked_amid_a_visit_leaves_as_its_parent_does() {
        let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new()).unwrap();
        let entered = NonNull::from(&*pool);
        let place =
            PLACES.iter().find(|place| place.pool.load(Ordering::SeqCst) == entered.as_ptr()).unwrap();
        let (inside, leave) = (Barrier::new(2), Barrier::new(2));
        let mut child = -1;
        let mut inside_child = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                visit_one(NonNull::from(&*pool), || {
                    inside.wait();
                    leave.wait();
                });
            });
            inside.wait();
            visit_one(entered, || {
                visit_one(entered, || {
                    // SAFETY: the child runs code of this crate alone, and ends below within a bounded time.
                    child = unsafe { libc::fork() };
                    inside_child = place.visitors.load(Ordering::SeqCst);
                });
            });
            if child == 0 {
                let left = place.visitors.load(Ordering::SeqCst);
                // SAFETY: sets a timer of this process: `leave` waits as long as there seems to be a visitor.
                unsafe { libc::alarm(20) };
                super::leave(entered);
                let status = if inside_child != 2 { 1 } else { i32::from(left != 0) * 2 };
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(status) };
            }
            leave.wait();
        });
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "status of the child");
        // (Other threads of this program visit all pools when they end.)
        drop(pool);
        assert!(VISITING.get().is_null());
    }
}
