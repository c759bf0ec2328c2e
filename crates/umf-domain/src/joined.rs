//! The domains that this process has joined: a second join is the same participant, since registering is once per
//! process.

use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use umf_sync::fork;

use crate::name::Name;
use crate::participant::Participant;
use crate::{DomainSettings, Result};

/// Held while joining, so that two threads do not join the same domain twice.
type Seat = Arc<Mutex<Weak<Participant>>>;

struct Book {
    /// The process that it is of.
    generation: u32,
    seats: Mutex<HashMap<Name, Seat>>,
}

/// The participant of this process, which joins if it has not.
pub(crate) fn join(name: Name, settings: &DomainSettings) -> Result<Arc<Participant>> {
    let seat = {
        let mut seats = lock(&book().seats);
        seats.retain(|_, seat| Arc::strong_count(seat) > 1 || lock(seat).strong_count() > 0);
        Arc::clone(seats.entry(name.clone()).or_default())
    };
    let mut seat = lock(&seat);
    if let Some(participant) = seat.upgrade()
        && participant.is_in_place()
    {
        return Ok(participant);
    }
    let participant = Participant::join(name, settings)?;
    *seat = Arc::downgrade(&participant);
    Ok(participant)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of this process. A forked child begins with an empty one, since in its parent's a lock may be held by a thread that it
/// does not have; that one is leaked.
fn book() -> &'static Book {
    static BOOK: AtomicPtr<Book> = AtomicPtr::new(core::ptr::null_mut());
    loop {
        let current = BOOK.load(Ordering::Acquire);
        // SAFETY: what is stored there is leaked, so valid for ever.
        if let Some(book) = unsafe { current.as_ref() }
            && book.generation == fork::generation()
        {
            return book;
        }
        let new = Box::new(Book { generation: fork::generation(), seats: Mutex::default() });
        let new = Box::into_raw(new);
        if BOOK.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}
