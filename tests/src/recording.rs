//! [`Recording`]: opens memory as the host importer does, under a kind of its own, and keeps count.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use umf::ProviderKind;
use umf::host::HostImport;
use umf_core::{Error, Import, ImportRequest, Imported, Result};

/// Opens memory of one kind, and knows what of it is open.
#[derive(Debug)]
pub struct Recording {
    kind: ProviderKind,
    host: HostImport,
    refuse: AtomicBool,
    books: Mutex<Books>,
}

#[derive(Clone, Debug, Default)]
struct Books {
    open: BTreeSet<u64>,
    natives: Vec<Vec<u8>>,
    imported: u64,
    foreign: u64,
}

impl Recording {
    /// For the kind of this name.
    ///
    /// # Panics
    /// If that cannot be a kind.
    #[must_use]
    pub fn new(kind: &str) -> Arc<Self> {
        Arc::new(Self {
            kind: ProviderKind::new(kind).unwrap(),
            host: HostImport::new(),
            refuse: AtomicBool::new(false),
            books: Mutex::default(),
        })
    }

    /// Whether each import fails from now on.
    pub fn refuse(&self, refuse: bool) {
        self.refuse.store(refuse, Ordering::SeqCst);
    }

    /// How many are open.
    ///
    /// # Panics
    /// If a thread did before.
    #[must_use]
    pub fn open(&self) -> usize {
        self.books.lock().unwrap().open.len()
    }

    /// How many were opened.
    ///
    /// # Panics
    /// If a thread did before.
    #[must_use]
    pub fn imported(&self) -> u64 {
        self.books.lock().unwrap().imported
    }

    /// How many were closed here that were never opened here, or not any more.
    ///
    /// # Panics
    /// If a thread did before.
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.books.lock().unwrap().foreign
    }

    /// The native bytes that came with each import.
    ///
    /// # Panics
    /// If a thread did before.
    #[must_use]
    pub fn natives(&self) -> Vec<Vec<u8>> {
        self.books.lock().unwrap().natives.clone()
    }
}

// SAFETY: everything is done by the host importer, and only what that opened is closed.
unsafe impl Import for Recording {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        if self.refuse.load(Ordering::SeqCst) {
            return Err(Error::OutOfMemory { size: request.size, owner: "the test", native: 0 });
        }
        let native = request.native[..request.native_len].to_vec();
        let imported = self.host.import(request)?;
        let mut books = self.books.lock().unwrap();
        books.imported += 1;
        books.natives.push(native);
        books.open.insert(imported.base.to_bits());
        Ok(imported)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        {
            let mut books = self.books.lock().unwrap();
            if !books.open.remove(&imported.base.to_bits()) {
                books.foreign += 1;
                return Err(Error::ForeignAddress { address: imported.base, owner: "the test" });
            }
        }
        // SAFETY: passed on to the caller; it was opened by the host importer.
        unsafe { self.host.release(imported) }
    }
}
