//! [`LeaseHolder`]: stands for importers in other processes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use umf_core::Freed;
use umf_core::{Address, Region};
use umf_runtime::observer::{self, ExportObserver, Leases, ObserverGuard};

/// An export observer that holds leases on address ranges until they are closed.
pub struct LeaseHolder {
    book: Arc<Book>,
    _observing: ObserverGuard,
}

struct Book {
    this: Weak<Self>,
    /// Address and size of each open range.
    open: Mutex<Vec<(Address, usize)>>,
    /// Addresses whose free was announced.
    told: Mutex<Vec<Address>>,
}

fn meet((one, size): (Address, usize), (other, other_size): (Address, usize)) -> bool {
    let inside =
        |a: Address, b: Address, size: usize| a.offset_from(b).is_some_and(|offset| offset < size as u64);
    inside(one, other, other_size) || inside(other, one, size)
}

impl LeaseHolder {
    /// Creates an observer without open ranges, and registers it.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let book = Arc::new_cyclic(|this| Book {
            this: this.clone(),
            open: Mutex::default(),
            told: Mutex::default(),
        });
        let observing = observer::register(book.clone()).expect("there is memory for one more observer");
        Arc::new(Self { book, _observing: observing })
    }

    /// Opens the range, as an importer would.
    pub fn open(&self, address: Address, size: usize) {
        self.book.lock().push((address, size));
    }

    /// Closes the ranges that were opened at this address.
    pub fn close(&self, address: Address) {
        self.book.lock().retain(|&(open, _)| open != address);
    }

    /// Closes all ranges.
    pub fn close_all(&self) {
        self.book.lock().clear();
    }

    /// Returns whether the free of this address was announced to the observer.
    #[must_use]
    pub fn was_announced(&self, address: Address) -> bool {
        self.book.told.lock().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }

    /// Returns whether an open range overlaps the given one.
    #[must_use]
    pub fn has(&self, address: Address, size: usize) -> bool {
        self.book.has(address, size)
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Vec<(Address, usize)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, address: Address, size: usize) -> bool {
        self.lock().iter().any(|&open| meet(open, (address, size)))
    }
}

impl ExportObserver for Book {
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>> {
        let (address, size) = match freed {
            Freed::Block { address } => (address, 1),
            Freed::Region(region) => (Region::base(&region), region.size()),
        };
        let this = self.this.upgrade().filter(|_| self.has(address, size))?;
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        Some(this)
    }
}

impl Leases for Book {
    fn is_leased(&self, base: Address, size: usize) -> bool {
        self.has(base, size)
    }
}
