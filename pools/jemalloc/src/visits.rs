//! Who is in a pool without owning it: threads that end, and other pools that ask it to give memory back.
//!
//! Nobody may wait for a lock here that others hold while they call jemalloc: in a fork, jemalloc's locks come first. So pools are
//! entered in a table, a visitor counts itself in before it looks whether the pool is still there, and a pool that goes is taken
//! out before it looks whether visitors are.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use umf_core::Result;
use umf_core::fork::{self, ForkAware};
use umf_core::metadata::{Table, Zeroed};
use umf_core::thread::{self, ThreadIndex};

use crate::{JemallocPool, je};

#[derive(Debug)]
struct Entry {
    pool: AtomicPtr<JemallocPool>,
    visitors: AtomicU32,
}

// SAFETY: all fields are atomics; a zeroed entry is a free one.
unsafe impl Zeroed for Entry {}

static ENTRIES: Table<Entry> = Table::new(1 << 14);

/// The visitors of a child are those that it has threads for: none.
struct Everyone;

impl ForkAware for Everyone {
    fn prepare(&self) {
        ENTRIES.lock_for_fork();
    }

    fn parent(&self) {
        // SAFETY: `prepare` took it in this thread, or in the one of which this is the copy.
        unsafe { ENTRIES.unlock_after_fork() };
    }

    fn child(&self) {
        self.parent();
        for entry in (1..ENTRIES.end()).filter_map(|number| ENTRIES.get(number)) {
            entry.visitors.store(0, Ordering::Relaxed);
        }
    }
}

static EVERYONE: Everyone = Everyone;

/// A pool's place in the table.
#[derive(Debug)]
pub(crate) struct Entrance(u32);

impl Entrance {
    /// Lets visitors in.
    ///
    /// # Errors
    /// Those of [`Table::allocate`], [`fork::register_static`] and [`thread::on_exit`].
    ///
    /// # Safety
    /// The pool stays where it is until [`Entrance::close`].
    pub(crate) unsafe fn open(pool: &JemallocPool) -> Result<Self> {
        static IS_KNOWN: AtomicBool = AtomicBool::new(false);
        thread::on_exit(thread_ends)?;
        fork::register_static(&EVERYONE, &IS_KNOWN)?;
        let (number, entry) = ENTRIES.allocate()?;
        entry.pool.store(core::ptr::from_ref(pool).cast_mut(), Ordering::SeqCst);
        Ok(Self(number))
    }

    /// Lets nobody in any more, and waits for those who are in.
    pub(crate) fn close(&self) {
        let Some(entry) = ENTRIES.get(self.0) else { return };
        if entry.pool.swap(null_mut(), Ordering::SeqCst).is_null() {
            return;
        }
        while entry.visitors.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        ENTRIES.release(self.0);
    }

    /// Runs `visit`, unless the pool is closed.
    pub(crate) fn visit<T>(&self, visit: impl FnOnce(&JemallocPool) -> T) -> Option<T> {
        let entry = ENTRIES.get(self.0)?;
        let _visiting = Visiting::begin(entry);
        // SAFETY: a pool that is in the table waits for its visitors before it goes.
        unsafe { entry.pool.load(Ordering::SeqCst).as_ref() }.map(visit)
    }
}

struct Visiting<'a>(&'a Entry);

impl<'a> Visiting<'a> {
    fn begin(entry: &'a Entry) -> Self {
        entry.visitors.fetch_add(1, Ordering::SeqCst);
        Self(entry)
    }
}

impl Drop for Visiting<'_> {
    fn drop(&mut self) {
        self.0.visitors.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a thread keeps goes back to the pools that there are.
fn thread_ends(index: ThreadIndex) {
    je::thread_ends();
    for number in 1..ENTRIES.end() {
        Entrance(number).visit(|pool| pool.forget_thread(index));
    }
}
