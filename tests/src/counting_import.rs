//! [`CountingImport`]: an importer of host memory that has its own provider kind and counts calls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umf::ProviderKind;
use umf::host::HostImport;
use umf_core::{Error, Import, ImportRequest, Imported, Result};

/// Importer that delegates to the host importer, and counts imports and releases.
#[derive(Debug)]
pub struct CountingImport {
    kind: ProviderKind,
    host: HostImport,
    fails: AtomicBool,
    counts: Mutex<Counts>,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    open: BTreeSet<u64>,
    native_bytes: Vec<Vec<u8>>,
    imports: u64,
    foreign_releases: u64,
}

impl CountingImport {
    /// Creates an importer for the provider kind `kind`.
    ///
    /// # Panics
    /// If `kind` is not a valid name of a kind.
    #[must_use]
    pub fn new(kind: &str) -> Arc<Self> {
        Arc::new(Self {
            kind: ProviderKind::new(kind).unwrap(),
            host: HostImport::new(),
            fails: AtomicBool::new(false),
            counts: Mutex::default(),
        })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes each later import fail, or succeed again.
    pub fn set_failing(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    /// Returns the number of imports that are open.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.counts().open.len()
    }

    /// Returns the number of imports so far.
    #[must_use]
    pub fn import_count(&self) -> u64 {
        self.counts().imports
    }

    /// Returns the number of releases of memory that was not imported by this importer.
    #[must_use]
    pub fn foreign_release_count(&self) -> u64 {
        self.counts().foreign_releases
    }

    /// Returns the native bytes of each import.
    #[must_use]
    pub fn native_bytes(&self) -> Vec<Vec<u8>> {
        self.counts().native_bytes.clone()
    }
}

// SAFETY: the host importer does all work, and `release` passes it only its own imports.
unsafe impl Import for CountingImport {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::OutOfMemory { size: request.size, owner: "the test", native: 0 });
        }
        let native = request.native[..request.native_len].to_vec();
        let imported = self.host.import(request)?;
        let mut counts = self.counts();
        counts.imports += 1;
        counts.native_bytes.push(native);
        counts.open.insert(imported.base.to_bits());
        Ok(imported)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        {
            let mut counts = self.counts();
            if !counts.open.remove(&imported.base.to_bits()) {
                counts.foreign_releases += 1;
                return Err(Error::ForeignAddress { address: imported.base, owner: "the test" });
            }
        }
        // SAFETY: the caller guarantees that the memory is not used; the host importer opened it.
        unsafe { self.host.release(imported) }
    }
}
