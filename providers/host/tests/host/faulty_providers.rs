//! Tests of the conformance suite: a provider with one fault at a time fails the case for that
//! fault. Systems in use have or had each of these faults.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use umf_core::{
    Access, Address, Export, Import, ImportRequest, Imported, Layout, MemoryKind, NativeExport, Provider,
    ProviderKind, Purge, Region, Result, Visibility,
};
use umf_provider_host::{HostImport, HostProvider};
use umf_testkit::provider::{self as suite, MakeProvider};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The offset of an export is one page before the region.
    WrongOffset,
    /// Purging succeeds and does nothing.
    PurgesNothing,
    /// Reused memory keeps its content, although the provider promises zeros.
    NotZero,
    /// Freeing an address that is not a region succeeds.
    FreesAnything,
    /// Each export leaks a descriptor.
    LeaksDescriptors,
    /// Each import leaks its mapping.
    LeaksMappings,
    /// Read-only imports can be written.
    Writable,
    /// Imports files that can shrink.
    Trusting,
    /// A region has the requested size, which may be a part of a page.
    PartialPages,
    /// Regions are aligned to pages only.
    Unaligned,
    /// A live region is allocated again.
    HandsOutTwice,
}

struct Faulty {
    inner: Arc<HostProvider>,
    import: HostImport,
    fault: Fault,
    /// Regions that are allocated again.
    reusable: Mutex<Vec<Region>>,
}

impl Faulty {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

// SAFETY: none: it is faulty on purpose. The cases fail before the faults cause undefined
// behaviour.
unsafe impl Provider for Faulty {
    fn kind(&self) -> ProviderKind {
        self.inner.kind()
    }
    fn name(&self) -> &str {
        "faulty"
    }
    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind()
    }
    fn visibility(&self) -> Visibility {
        self.inner.visibility()
    }
    fn page_size(&self) -> usize {
        self.inner.page_size()
    }
    fn allocate(&self, layout: Layout) -> Result<Region> {
        if self.is(Fault::NotZero) || self.is(Fault::HandsOutTwice) {
            let mut reusable = self.reusable.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(place) = reusable.iter().position(|region| region.size() >= layout.size()) {
                let region = reusable[place];
                if self.is(Fault::NotZero) {
                    reusable.swap_remove(place);
                }
                return Ok(region);
            }
        }
        let layout = if self.is(Fault::Unaligned) { Layout::new(layout.size(), 1)? } else { layout };
        let region = self.inner.allocate(layout)?;
        if self.is(Fault::HandsOutTwice) {
            let mut reusable = self.reusable.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            reusable.push(Region::new(region.base(), region.size()));
        }
        if self.is(Fault::PartialPages) {
            return Ok(Region::new(region.base(), layout.size()));
        }
        Ok(region)
    }
    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is(Fault::NotZero) {
            self.reusable.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(region);
            return Ok(());
        }
        if self.is(Fault::HandsOutTwice) {
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        let result = unsafe { self.inner.free(region) };
        if self.is(Fault::FreesAnything) { Ok(()) } else { result }
    }
    fn zeroed(&self) -> bool {
        true
    }
    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }
    fn import(&self) -> Option<&dyn Import> {
        Some(self)
    }
    fn purge(&self) -> Option<&dyn Purge> {
        if self.is(Fault::PurgesNothing) { Some(self) } else { Provider::purge(&*self.inner) }
    }
}

impl Export for Faulty {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let mut export = Export::export(&*self.inner, region)?;
        match self.fault {
            Fault::WrongOffset => export.offset = export.offset.saturating_sub(4096),
            Fault::LeaksDescriptors => std::mem::forget(export.fd.as_ref().map(|fd| fd.try_clone())),
            _ => {}
        }
        Ok(export)
    }
}

// SAFETY: none, as above.
unsafe impl Import for Faulty {
    fn kind(&self) -> ProviderKind {
        self.import.kind()
    }
    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let access = request.access;
        if self.is(Fault::Writable) {
            request.access = Access::ReadWrite;
        }
        let imported = self.import.import(request)?;
        Ok(Imported::host(imported.base, imported.size, access))
    }
    unsafe fn release(&self, imported: Imported) -> Result<()> {
        if self.is(Fault::LeaksMappings) {
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        unsafe { self.import.release(imported) }
    }
}

impl Purge for Faulty {
    unsafe fn purge_lazy(&self, _: Address, _: usize) -> Result<()> {
        Ok(())
    }
    unsafe fn purge_forced(&self, _: Address, _: usize) -> Result<()> {
        Ok(())
    }
}

fn passes(fault: Fault, case: fn(MakeProvider<'_>)) -> bool {
    let make = move || -> Arc<dyn Provider> {
        Arc::new(Faulty {
            inner: HostProvider::builder().visibility(Visibility::Shared).build().expect("a provider"),
            import: HostImport::new().allow_unsealed(fault == Fault::Trusting),
            fault,
            reusable: Mutex::default(),
        })
    };
    catch_unwind(AssertUnwindSafe(|| case(&make))).is_ok()
}

#[test]
fn suite_detects_each_fault() {
    let faults: [(Fault, fn(MakeProvider<'_>)); 11] = [
        (Fault::WrongOffset, suite::import_maps_the_exported_bytes),
        (Fault::PurgesNothing, suite::purged_pages_read_as_zero),
        (Fault::NotZero, suite::fresh_memory_is_zero_where_promised),
        (Fault::FreesAnything, suite::foreign_and_double_frees_are_errors),
        (Fault::LeaksDescriptors, suite::cycles_leak_nothing),
        (Fault::LeaksMappings, suite::cycles_leak_nothing),
        (Fault::Writable, suite::read_only_imports_cannot_be_written),
        (Fault::Trusting, suite::invalid_import_requests_are_refused),
        (Fault::PartialPages, suite::region_sizes_are_page_multiples),
        (Fault::Unaligned, suite::alignment_is_met_or_refused),
        (Fault::HandsOutTwice, suite::regions_do_not_overlap),
    ];
    for (fault, case) in faults {
        assert!(passes(Fault::None, case), "{fault:?}: the provider without a fault fails");
        assert!(!passes(fault, case), "{fault:?} was not detected");
    }
}
