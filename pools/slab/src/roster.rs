//! Which pools a thread that ends has to give its blocks back to.
//!
//! A fixed table without a lock: a thread's end may not wait for a fork that waits for a pool.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use umf_core::fork::{self, ForkAware};
use umf_core::thread::{self, ThreadIndex};
use umf_core::{Error, Result};

use crate::SlabPool;

const LIMIT: usize = 4096;

struct Place {
    pool: AtomicPtr<SlabPool>,
    /// Threads that use the pool, and have no part in it: ending ones, and those of other pools.
    visitors: AtomicU32,
}

static PLACES: [Place; LIMIT] =
    [const { Place { pool: AtomicPtr::new(ptr::null_mut()), visitors: AtomicU32::new(0) } }; LIMIT];
/// Places from here on were never used.
static END: AtomicU32 = AtomicU32::new(0);

/// Visitors that were at work in the parent do not exist in the child.
struct Visitors;

impl ForkAware for Visitors {
    fn prepare(&self) {}
    fn parent(&self) {}
    fn child(&self) {
        for place in &PLACES[..END.load(Ordering::Relaxed) as usize] {
            place.visitors.store(0, Ordering::Relaxed);
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

/// Runs `visit` while the pool cannot go; `None` if it is going, or not there. The pool must not be dropped by `visit`.
pub(crate) fn visit<T>(pool: NonNull<SlabPool>, visit: impl FnOnce() -> T) -> Option<T> {
    let places = &PLACES[..END.load(Ordering::SeqCst) as usize];
    let place = places.iter().find(|place| place.pool.load(Ordering::Relaxed) == pool.as_ptr())?;
    let _visitor = Visitor::enter(place);
    (place.pool.load(Ordering::SeqCst) == pool.as_ptr()).then(visit)
}

/// Shows all pools, none of which goes while it is shown. `look` drops none.
pub(crate) fn each(mut look: impl FnMut(&SlabPool)) {
    for place in &PLACES[..END.load(Ordering::SeqCst) as usize] {
        if place.pool.load(Ordering::Relaxed).is_null() {
            continue;
        }
        let _visitor = Visitor::enter(place);
        if let Some(pool) = NonNull::new(place.pool.load(Ordering::SeqCst)) {
            // SAFETY: the pool stays until `leave`, which waits for this visitor.
            look(unsafe { pool.as_ref() });
        }
    }
}

/// Somebody uses the pool at a place until this is dropped.
struct Visitor(&'static Place);

impl Visitor {
    /// Announced before the pool is looked at: `leave` takes the pool out before it looks at the visitors.
    fn enter(place: &'static Place) -> Self {
        place.visitors.fetch_add(1, Ordering::SeqCst);
        Self(place)
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.0.visitors.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread ends: every pool takes back what it keeps.
fn flush(index: ThreadIndex) {
    each(|pool| pool.flush_thread(index));
}
