//! What the first user makes.

use core::ptr::NonNull;

use loom::sync::atomic::{AtomicPtr, AtomicUsize};

use super::super::place::{fill, find};
use super::*;

#[derive(Debug)]
struct Table {
    belongs_here: bool,
    memory: Memory,
}

#[derive(Debug)]
struct Shared {
    place: ModelWord<AtomicPtr<Table>>,
    /// Tables that were made here, and those of them that are gone.
    made: AtomicUsize,
    gone: AtomicUsize,
}

impl Shared {
    fn new(before: *mut Table) -> Self {
        let place = ModelWord::over(AtomicPtr::new(before));
        Self { place, made: AtomicUsize::new(0), gone: AtomicUsize::new(0) }
    }

    fn drop_table(&self, table: NonNull<Table>) {
        // SAFETY: it came from a box, and is the caller's.
        drop(unsafe { Box::from_raw(table.as_ptr()) });
        self.gone.fetch_add(1, Ordering::Relaxed);
    }

    /// The table, made if there is none, as `Producer::lease` does. Yields how it was come by, too.
    fn use_it(&self) -> (NonNull<Table>, &'static str) {
        // SAFETY: what lies there stays as long as this.
        let belongs_here = |table: NonNull<Table>| unsafe { table.as_ref() }.belongs_here;
        let (table, how) = match find(&self.place, belongs_here) {
            Ok(table) => (table, "found"),
            Err(vacant) => {
                let new = Table { belongs_here: true, memory: Memory::new() };
                new.memory.make();
                self.made.fetch_add(1, Ordering::Relaxed);
                let new = NonNull::from(Box::leak(Box::new(new)));
                match fill(&self.place, vacant, new) {
                    Ok(()) => (new, "made"),
                    Err(first) => {
                        self.drop_table(new);
                        (first.unwrap(), "too late")
                    }
                }
            }
        };
        // SAFETY: as above.
        unsafe { table.as_ref() }.memory.use_it();
        (table, how)
    }

    /// The last user takes it away.
    fn end(&self) {
        self.drop_table(NonNull::new(self.place.load(Ordering::Acquire)).unwrap());
        assert_eq!(
            self.made.load(Ordering::Relaxed),
            self.gone.load(Ordering::Relaxed),
            "none is left behind"
        );
    }
}

/// Threads that need a table at the same time all get the same one, and those that were made in vain are gone. A parent's that
/// lies there is of no use, and is not touched.
#[test]
fn loom_what_the_first_user_makes_is_all_there_is() {
    let reached = Reached::default();
    for is_in_child in [false, true] {
        let in_model = reached.clone();
        model(move || {
            let mut parents = Table { belongs_here: false, memory: Memory::new() };
            let before = if is_in_child { &raw mut parents } else { core::ptr::null_mut() };
            let shared = Arc::new(Shared::new(before));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (table, how) = shared.use_it();
                        (table.as_ptr().addr(), how)
                    })
                })
                .collect();
            let (own, how) = shared.use_it();
            in_model.reach(how);
            for thread in threads {
                let (table, how) = thread.join().unwrap();
                in_model.reach(how);
                assert_eq!(table, own.as_ptr().addr(), "one table for all");
            }
            shared.end();
        });
    }
    reached.check(["found", "made", "too late"]);
}
