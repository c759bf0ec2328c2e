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
    /// Threads that use the pool without owning it.
    visitors: AtomicU32,
}

static PLACES: [Place; LIMIT] =
    [const { Place { pool: AtomicPtr::new(ptr::null_mut()), visitors: AtomicU32::new(0) } }; LIMIT];
/// Places from here on were never used.
static END: AtomicU32 = AtomicU32::new(0);

/// Somebody uses the pool at a place, until this is dropped.
struct Visitor<'a>(&'a Place);

impl<'a> Visitor<'a> {
    fn announce(place: &'a Place) -> Self {
        place.visitors.fetch_add(1, Ordering::SeqCst);
        Self(place)
    }
}

impl Drop for Visitor<'_> {
    fn drop(&mut self) {
        self.0.visitors.fetch_sub(1, Ordering::SeqCst);
    }
}

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

/// Shows one pool, unless it is going. `look` must not drop it.
pub(crate) fn visit_one(pool: NonNull<SlabPool>, look: impl FnOnce()) {
    let places = &PLACES[..END.load(Ordering::SeqCst) as usize];
    if let Some(place) = places.iter().find(|place| place.pool.load(Ordering::Relaxed) == pool.as_ptr()) {
        let _visitor = Visitor::announce(place);
        if place.pool.load(Ordering::SeqCst) == pool.as_ptr() {
            look();
        }
    }
}

/// Shows every pool that is there, one after the other. `look` drops none.
pub(crate) fn visit(mut look: impl FnMut(&SlabPool)) {
    for place in &PLACES[..END.load(Ordering::SeqCst) as usize] {
        if place.pool.load(Ordering::Relaxed).is_null() {
            continue;
        }
        // Announced before the pool is looked at: `leave` takes the pool out before it looks at the visitors.
        let _visitor = Visitor::announce(place);
        if let Some(pool) = NonNull::new(place.pool.load(Ordering::SeqCst)) {
            // SAFETY: the pool stays until `leave`, which waits for this visitor.
            look(unsafe { pool.as_ref() });
        }
    }
}

/// A thread ends: every pool takes back what it keeps.
fn flush(index: ThreadIndex) {
    visit(|pool| pool.flush_thread(index));
}
