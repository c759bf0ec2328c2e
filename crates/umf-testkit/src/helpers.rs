//! Helpers for tests: [`race`] and [`SetOnDrop`] for tests with several threads, and
//! [`LeaseHolder`], which stands in for importers in other processes.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use umf_core::{Address, Freed, Region};
use umf_runtime::observer::{self, ExportObserver, Leases, ObserverGuard};

/// Calls `act` for each of `items` in two threads, one of them the calling thread. Both threads
/// reach each item at about the same time.
///
/// # Panics
/// Panics if `act` does.
pub fn race<T: Sync>(items: &[T], act: impl Fn(&T) + Sync) {
    let arrived = AtomicUsize::new(0);
    let run = || {
        let _arrives = Arrives(&arrived);
        for (turn, item) in (1..).zip(items) {
            arrived.fetch_add(1, Ordering::AcqRel);
            let mut spins = 0_u32;
            while arrived.load(Ordering::Acquire) < 2 * turn {
                spins += 1;
                if spins.is_multiple_of(4096) {
                    std::thread::yield_now();
                }
            }
            act(item);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(run);
        run();
        other.join().expect("the other thread does not panic");
    });
}

/// Guard that marks a thread as arrived everywhere when it ends. If `act` panics in one thread, the
/// other thread does not wait for it.
struct Arrives<'a>(&'a AtomicUsize);

impl Drop for Arrives<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(usize::MAX / 4, Ordering::AcqRel);
    }
}

/// Guard that sets a flag when it is dropped. A thread scope joins its threads even if the test
/// panics. Threads that run until the flag is set then end instead of running forever.
#[derive(Debug)]
pub struct SetOnDrop<'e>(pub &'e AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An export observer that holds leases on address ranges until they are closed.
pub struct LeaseHolder {
    ranges: Arc<LeasedRanges>,
    _observing: ObserverGuard,
}

struct LeasedRanges {
    weak_self: Weak<Self>,
    /// Address and size of each open range.
    open: Mutex<Vec<(Address, usize)>>,
    /// Addresses whose free was announced.
    announced: Mutex<Vec<Address>>,
}

/// Returns whether two ranges overlap.
fn overlap((one, size): (Address, usize), (other, other_size): (Address, usize)) -> bool {
    let inside =
        |a: Address, b: Address, size: usize| a.offset_from(b).is_some_and(|offset| offset < size as u64);
    inside(one, other, other_size) || inside(other, one, size)
}

impl LeaseHolder {
    /// Creates an observer without open ranges, and registers it.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let ranges = Arc::new_cyclic(|weak_self| LeasedRanges {
            weak_self: weak_self.clone(),
            open: Mutex::default(),
            announced: Mutex::default(),
        });
        let observing = observer::register(ranges.clone()).expect("there is memory for one more observer");
        Arc::new(Self { ranges, _observing: observing })
    }

    /// Opens the range, as an importer would.
    pub fn open(&self, address: Address, size: usize) {
        self.ranges.lock().push((address, size));
    }

    /// Closes the ranges that were opened at this address.
    pub fn close(&self, address: Address) {
        self.ranges.lock().retain(|&(open, _)| open != address);
    }

    /// Closes all ranges.
    pub fn close_all(&self) {
        self.ranges.lock().clear();
    }

    /// Returns whether the free of this address was announced to the observer.
    #[must_use]
    pub fn was_announced(&self, address: Address) -> bool {
        self.ranges.announced.lock().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }

    /// Returns whether an open range overlaps the given one.
    #[must_use]
    pub fn has(&self, address: Address, size: usize) -> bool {
        self.ranges.has(address, size)
    }
}

impl LeasedRanges {
    fn lock(&self) -> MutexGuard<'_, Vec<(Address, usize)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, address: Address, size: usize) -> bool {
        self.lock().iter().any(|&open| overlap(open, (address, size)))
    }
}

impl ExportObserver for LeasedRanges {
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>> {
        let (address, size) = match freed {
            Freed::Block { address } => (address, 1),
            Freed::Region(region) => (Region::base(&region), region.size()),
        };
        let this = self.weak_self.upgrade().filter(|_| self.has(address, size))?;
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        Some(this)
    }
}

impl Leases for LeasedRanges {
    fn is_leased(&self, base: Address, size: usize) -> bool {
        self.has(base, size)
    }
}
