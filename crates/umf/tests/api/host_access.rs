//! The provider's `HostAccess` brackets each CPU access of blocks and mappings.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use umf::host::{HostImport, HostProvider};
use umf::{Access, Address, Pool};
use umf_core::{
    Error, Export, HostAccess, Import, ImportRequest, Imported, Layout, MemoryKind, Provider, ProviderKind,
    Region, Result, Visibility,
};

const KIND: ProviderKind = ProviderKind::new("told").unwrap();

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Begins(Address, usize, Access),
    Ends(Address, usize, Access),
}

/// A `HostAccess` that records its calls, and fails on request.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<Call>>,
    fails: AtomicBool,
}

impl Recorder {
    #[track_caller]
    fn assert_bracket(&self, base: Address, size: usize, access: Access) {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        assert_eq!(calls, [Call::Begins(base, size, access), Call::Ends(base, size, access)]);
    }

    #[track_caller]
    fn assert_no_calls(&self) {
        assert_eq!(*self.calls.lock().unwrap(), []);
    }
}

impl HostAccess for Recorder {
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::native("begin", 5));
        }
        self.calls.lock().unwrap().push(Call::Begins(base, size, access));
        Ok(())
    }

    fn end(&self, base: Address, size: usize, access: Access) -> Result<()> {
        self.calls.lock().unwrap().push(Call::Ends(base, size, access));
        Ok(())
    }
}

/// A provider of host memory that requires bracketing.
struct RecordedProvider {
    host: Arc<HostProvider>,
    recorder: Arc<Recorder>,
}

// SAFETY: everything is done by the host provider.
unsafe impl Provider for RecordedProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }
    fn name(&self) -> &str {
        "told"
    }
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }
    fn page_size(&self) -> usize {
        self.host.page_size()
    }
    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.host.allocate(layout)
    }
    unsafe fn free(&self, region: Region) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.host.free(region) }
    }
    fn export(&self) -> Option<&dyn Export> {
        Provider::export(&*self.host)
    }
    fn host_access(&self) -> Option<&dyn HostAccess> {
        Some(&*self.recorder)
    }
}

struct RecordedImport(Arc<Recorder>);

// SAFETY: everything is done by the host importer.
unsafe impl Import for RecordedImport {
    fn kind(&self) -> ProviderKind {
        KIND
    }
    fn import(&self, request: ImportRequest) -> Result<Imported> {
        HostImport::new().import(request)
    }
    fn host_access(&self) -> Option<&dyn HostAccess> {
        Some(&*self.0)
    }
    unsafe fn release(&self, imported: Imported) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { HostImport::new().release(imported) }
    }
}

fn offset(base: Address, bytes: u64) -> Address {
    base.checked_add(bytes).unwrap()
}

#[test]
fn each_copy_is_bracketed_once() {
    let (exporter_calls, importer_calls) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let host = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = Pool::builder()
        .provider(Arc::new(RecordedProvider { host, recorder: Arc::clone(&exporter_calls) }))
        .build()
        .unwrap();
    umf::importer().unwrap().add_import(Arc::new(RecordedImport(Arc::clone(&importer_calls))));

    let block = pool.allocate(5000).unwrap();
    exporter_calls.assert_no_calls();
    block.write(7, b"told").unwrap();
    exporter_calls.assert_bracket(offset(block.address(), 7), 4, Access::ReadWrite);
    let mut text = [0; 4];
    block.read(7, &mut text).unwrap();
    assert_eq!(&text, b"told");
    exporter_calls.assert_bracket(offset(block.address(), 7), 4, Access::ReadOnly);
    block.read(7, &mut []).unwrap();
    assert!(block.read(4999, &mut text).is_err());
    assert!(block.write(usize::MAX, b"x").is_err());
    exporter_calls.assert_no_calls();
    // One bracket around several copies.
    let mut memory = block.cpu_access(Access::ReadWrite).unwrap();
    memory.write(0, b"a").unwrap();
    memory.write(4999, b"b").unwrap();
    drop(memory);
    exporter_calls.assert_bracket(block.address(), 5000, Access::ReadWrite);

    let handle = block.handle().unwrap();
    exporter_calls.assert_no_calls();
    // First a new mapping, then a cached one.
    for _ in 0..3 {
        let mapping = umf::open(&handle).unwrap();
        let base = mapping.address();
        importer_calls.assert_no_calls();
        mapping.read(7, &mut text).unwrap();
        assert_eq!(&text, b"told");
        importer_calls.assert_bracket(offset(base, 7), 4, Access::ReadOnly);
        mapping.read_current(7, &mut text).unwrap();
        importer_calls.assert_bracket(offset(base, 7), 4, Access::ReadOnly);
        mapping.write(9, b"m").unwrap();
        importer_calls.assert_bracket(offset(base, 9), 1, Access::ReadWrite);
        mapping.write(9, b"l").unwrap();
        importer_calls.assert_bracket(offset(base, 9), 1, Access::ReadWrite);
        assert_eq!(mapping.with(|memory| memory.len()).unwrap(), mapping.len());
        importer_calls.assert_bracket(base, mapping.len(), Access::ReadWrite);
        drop(mapping.cpu_access(Access::ReadOnly).unwrap());
        importer_calls.assert_bracket(base, mapping.len(), Access::ReadOnly);
        assert!(mapping.read(mapping.len(), &mut text).is_err());
        importer_calls.assert_no_calls();
        // Nothing is copied if `begin` fails.
        importer_calls.fails.store(true, Ordering::Relaxed);
        assert!(mapping.write(7, b"lost").is_err() && mapping.with(|_| ()).is_err());
        importer_calls.fails.store(false, Ordering::Relaxed);
        mapping.read(7, &mut text).unwrap();
        assert_eq!(&text, b"told");
        importer_calls.assert_bracket(offset(base, 7), 4, Access::ReadOnly);

        let mapping = umf::open_read_only(&handle).unwrap();
        mapping.read(7, &mut text).unwrap();
        importer_calls.assert_bracket(offset(mapping.address(), 7), 4, Access::ReadOnly);
        assert!(mapping.write(7, b"x").is_err() && mapping.cpu_access(Access::ReadWrite).is_err());
        importer_calls.assert_no_calls();
    }
    exporter_calls.fails.store(true, Ordering::Relaxed);
    assert!(block.write(7, b"lost").is_err() && block.read(7, &mut [0]).is_err());
    exporter_calls.fails.store(false, Ordering::Relaxed);
    block.read(7, &mut text).unwrap();
    assert_eq!(&text, b"told");
    exporter_calls.assert_bracket(offset(block.address(), 7), 4, Access::ReadOnly);
    exporter_calls.assert_no_calls();
}

#[test]
fn host_memory_needs_no_bracketing() {
    let pool = Pool::shared().unwrap();
    assert!(pool.provider().host_access().is_none());
    let block = pool.allocate(100).unwrap();
    let mut memory = block.cpu_access(Access::ReadWrite).unwrap();
    memory.write(96, b"last").unwrap();
    assert!(memory.write(97, b"over").is_err());
    memory.end().unwrap();
    let mapping = umf::open(&block.handle().unwrap()).unwrap();
    let memory = umf::cpu_access(&mapping, Access::ReadOnly).unwrap();
    let mut text = [0; 4];
    memory.read(96, &mut text).unwrap();
    assert_eq!(&text, b"last");
}
