//! Event subscribers that use thread-local storage, called in threads whose storage is destroyed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::{Event, Metadata, Subscriber, span};
use umf_core::{Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_runtime::checked::{CheckSettings, Checked, Leaks};
use umf_testkit::pool::MmapProvider;

static EVENTS: AtomicUsize = AtomicUsize::new(0);
/// Events in threads whose thread-local storage was destroyed.
static LATE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static LAST: RefCell<Option<Arc<Checked>>> = const { RefCell::new(None) };
}

struct Buffering;

impl Subscriber for Buffering {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn event(&self, _: &Event<'_>) {
        EVENTS.fetch_add(1, Ordering::Relaxed);
        if BUFFER.try_with(|buffer| buffer.borrow_mut().push(0)).is_err() {
            LATE.fetch_add(1, Ordering::Relaxed);
            // Does not call the panic hook, which would print a message.
            std::panic::resume_unwind(Box::new("thread-local storage was destroyed"));
        }
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn thread_ends_although_the_subscriber_panics() {
    tracing::subscriber::set_global_default(Buffering).unwrap();
    let make = || {
        let pool = SlabPool::new(MmapProvider::private(), SlabSettings::new().trace(2)).unwrap();
        Checked::new(pool, CheckSettings::new().leaks(Leaks::Count)).unwrap()
    };
    let pool = make();
    let work = || {
        let block = |_| pool.allocate(Layout::new(3000, 16).unwrap()).unwrap();
        for address in (0..2000).map(block).collect::<Vec<_>>() {
            // SAFETY: the block is this thread's, and no thread uses it.
            unsafe { pool.free(address) }.unwrap();
        }
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    let (events, late) = (EVENTS.load(Ordering::Relaxed), LATE.load(Ordering::Relaxed));
    assert!(events > 0, "the pool sends no events, so the test checks nothing");
    assert_eq!(late, 0, "a thread that ends sends no events");
    // The last reference to a pool is dropped with a thread's storage.
    let last = move || {
        let pool = make();
        pool.allocate(Layout::new(100, 1).unwrap()).unwrap();
        LAST.set(Some(pool));
        BUFFER.with(|_| ());
    };
    std::thread::spawn(last).join().unwrap();
    assert_eq!(pool.statistics().live_blocks, 0);
}
