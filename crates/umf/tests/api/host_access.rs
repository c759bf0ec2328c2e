//! Whoever wants to hear of it when the CPU touches memory does, at each copy of blocks and mappings.

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
enum Word {
    Begins(Address, usize, Access),
    Ends(Address, usize, Access),
}

/// What it was told, and whether it refuses.
#[derive(Default)]
struct Listener {
    heard: Mutex<Vec<Word>>,
    refuses: AtomicBool,
}

impl Listener {
    #[track_caller]
    fn heard(&self, base: Address, size: usize, access: Access) {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        assert_eq!(heard, [Word::Begins(base, size, access), Word::Ends(base, size, access)]);
    }

    #[track_caller]
    fn heard_nothing(&self) {
        assert_eq!(*self.heard.lock().unwrap(), []);
    }
}

impl HostAccess for Listener {
    fn begin(&self, base: Address, size: usize, access: Access) -> Result<()> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::native("begin", 5));
        }
        self.heard.lock().unwrap().push(Word::Begins(base, size, access));
        Ok(())
    }

    fn end(&self, base: Address, size: usize, access: Access) -> Result<()> {
        self.heard.lock().unwrap().push(Word::Ends(base, size, access));
        Ok(())
    }
}

/// Host memory, of which somebody wants to hear.
struct Told {
    host: Arc<HostProvider>,
    listener: Arc<Listener>,
}

// SAFETY: everything is done by the host provider.
unsafe impl Provider for Told {
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
        // SAFETY: passed on to the caller.
        unsafe { self.host.free(region) }
    }
    fn export(&self) -> Option<&dyn Export> {
        Provider::export(&*self.host)
    }
    fn host_access(&self) -> Option<&dyn HostAccess> {
        Some(&*self.listener)
    }
}

struct ToldImport(Arc<Listener>);

// SAFETY: everything is done by the host importer.
unsafe impl Import for ToldImport {
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
        // SAFETY: passed on to the caller.
        unsafe { HostImport::new().release(imported) }
    }
}

fn further(base: Address, bytes: u64) -> Address {
    base.checked_add(bytes).unwrap()
}

#[test]
fn each_copy_is_told_of_and_nothing_else() {
    let (ours, theirs) = (Arc::new(Listener::default()), Arc::new(Listener::default()));
    let host = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool =
        Pool::builder().provider(Arc::new(Told { host, listener: Arc::clone(&ours) })).build().unwrap();
    umf::importer().unwrap().add_import(Arc::new(ToldImport(Arc::clone(&theirs))));

    let block = pool.allocate(5000).unwrap();
    ours.heard_nothing();
    block.write(7, b"told").unwrap();
    ours.heard(further(block.address(), 7), 4, Access::ReadWrite);
    let mut text = [0; 4];
    block.read(7, &mut text).unwrap();
    assert_eq!(&text, b"told");
    ours.heard(further(block.address(), 7), 4, Access::ReadOnly);
    block.read(7, &mut []).unwrap();
    assert!(block.read(4999, &mut text).is_err());
    assert!(block.write(usize::MAX, b"x").is_err());
    ours.heard_nothing();
    // One time for several.
    let mut memory = block.cpu_access(Access::ReadWrite).unwrap();
    memory.write(0, b"a").unwrap();
    memory.write(4999, b"b").unwrap();
    drop(memory);
    ours.heard(block.address(), 5000, Access::ReadWrite);

    let handle = block.handle().unwrap();
    ours.heard_nothing();
    // First a mapping that is made, then one that is found.
    for _ in 0..3 {
        let mapping = umf::open(&handle).unwrap();
        let base = mapping.address();
        theirs.heard_nothing();
        mapping.read(7, &mut text).unwrap();
        assert_eq!(&text, b"told");
        theirs.heard(further(base, 7), 4, Access::ReadOnly);
        mapping.read_current(7, &mut text).unwrap();
        theirs.heard(further(base, 7), 4, Access::ReadOnly);
        mapping.write(9, b"m").unwrap();
        theirs.heard(further(base, 9), 1, Access::ReadWrite);
        mapping.write(9, b"l").unwrap();
        theirs.heard(further(base, 9), 1, Access::ReadWrite);
        assert_eq!(mapping.with(|memory| memory.len()).unwrap(), mapping.len());
        theirs.heard(base, mapping.len(), Access::ReadWrite);
        drop(mapping.cpu_access(Access::ReadOnly).unwrap());
        theirs.heard(base, mapping.len(), Access::ReadOnly);
        assert!(mapping.read(mapping.len(), &mut text).is_err());
        theirs.heard_nothing();
        // Nothing is copied where it cannot be told.
        theirs.refuses.store(true, Ordering::Relaxed);
        assert!(mapping.write(7, b"lost").is_err() && mapping.with(|_| ()).is_err());
        theirs.refuses.store(false, Ordering::Relaxed);
        mapping.read(7, &mut text).unwrap();
        assert_eq!(&text, b"told");
        theirs.heard(further(base, 7), 4, Access::ReadOnly);

        let mapping = umf::open_read_only(&handle).unwrap();
        mapping.read(7, &mut text).unwrap();
        theirs.heard(further(mapping.address(), 7), 4, Access::ReadOnly);
        assert!(mapping.write(7, b"x").is_err() && mapping.cpu_access(Access::ReadWrite).is_err());
        theirs.heard_nothing();
    }
    ours.refuses.store(true, Ordering::Relaxed);
    assert!(block.write(7, b"lost").is_err() && block.read(7, &mut [0]).is_err());
    ours.refuses.store(false, Ordering::Relaxed);
    block.read(7, &mut text).unwrap();
    assert_eq!(&text, b"told");
    ours.heard(further(block.address(), 7), 4, Access::ReadOnly);
    ours.heard_nothing();
}

#[test]
fn memory_of_the_host_has_nobody_told_and_is_accessed_all_the_same() {
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
