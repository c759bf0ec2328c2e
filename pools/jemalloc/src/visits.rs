//! Who is in a pool without owning it: threads that end, and other pools that ask it to give memory back.
//!
//! A thread that ends may not wait for a fork that waits for a pool. So pools are entered in a table, a visitor counts itself in
//! before it looks whether the pool is still there, and a pool that goes is taken out before it looks whether visitors are.

use core::cell::Cell;
use core::ptr::{null, null_mut};
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

/// A visit of this thread. Lies on its stack.
struct Visiting {
    entry: &'static Entry,
    /// What it was visiting before, and is still.
    outer: *const Self,
}

thread_local! {
    /// What the thread is visiting, the latest first.
    static VISITING: Cell<*const Visiting> = const { Cell::new(null()) };
}

/// The visitors of a child are those that it has threads for: the one that forked, if it is visiting.
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
        let mut next = VISITING.get();
        // SAFETY: what this thread is visiting lies on its stack until it leaves, when it is taken out of the list.
        while let Some(visiting) = unsafe { next.as_ref() } {
            visiting.entry.visitors.fetch_add(1, Ordering::Relaxed);
            next = visiting.outer;
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
        announced(entry, || {
            // SAFETY: a pool that is in the table waits for its visitors before it goes.
            unsafe { entry.pool.load(Ordering::SeqCst).as_ref() }.map(visit)
        })
    }
}

/// Runs `visit`, with the calling thread counted in.
fn announced<T>(entry: &'static Entry, visit: impl FnOnce() -> T) -> T {
    struct Announced<'v>(&'v Visiting);

    impl Drop for Announced<'_> {
        fn drop(&mut self) {
            VISITING.set(self.0.outer);
            self.0.entry.visitors.fetch_sub(1, Ordering::SeqCst);
        }
    }

    let visiting = Visiting { entry, outer: VISITING.get() };
    entry.visitors.fetch_add(1, Ordering::SeqCst);
    VISITING.set(&raw const visiting);
    let _announced = Announced(&visiting);
    visit()
}

/// What a thread keeps goes back to the pools that there are.
fn thread_ends(index: ThreadIndex) {
    je::thread_ends();
    for number in 1..ENTRIES.end() {
        Entrance(number).visit(|pool| pool.forget_thread(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umf_core::conformance::pool::Numbers;

    #[test]
    fn a_child_that_is_forked_amid_a_visit_leaves_as_its_parent_does() {
        let pool = JemallocPool::new(Numbers::new(4096)).unwrap();
        // SAFETY: the pool stays; closed below.
        let entrance = unsafe { Entrance::open(&pool) }.unwrap();
        let entry = ENTRIES.get(entrance.0).unwrap();
        let (mut child, mut inside_child) = (-1, 0);
        entrance.visit(|_| {
            entrance.visit(|_| {
                // SAFETY: the child runs code of this crate alone, and ends below within a bounded time.
                child = unsafe { libc::fork() };
                inside_child = entry.visitors.load(Ordering::SeqCst);
            })
        });
        if child == 0 {
            // SAFETY: sets a timer of this process: `close` waits as long as there seems to be a visitor.
            unsafe { libc::alarm(20) };
            let left = entry.visitors.load(Ordering::SeqCst);
            entrance.close();
            let status = if inside_child != 2 { 1 } else { i32::from(left != 0) * 2 };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        entrance.close();
        assert_eq!(status, 0, "status of the child");
    }
}
