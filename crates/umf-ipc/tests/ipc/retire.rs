//! Exports are retired before their memory is freed, also while another thread evicts, exports or
//! drops the exporter.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use umf_core::{
    Address, Error, Export, Layout, MemoryKind, NativeExport, Pool, Provider, ProviderKind, Region, RegionId,
    Visibility,
};
use umf_ipc::{Error as IpcError, Exchange, Exporter, ExporterSettings, Importer, Mode};
use umf_pool_proxy::ProxyPool;
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

fn shared() -> Arc<HostProvider> {
    HostProvider::builder().visibility(Visibility::Shared).build().unwrap()
}

fn importer() -> Importer {
    Importer::builder().import(Arc::new(HostImport::new())).build().unwrap()
}

fn exporter() -> Exporter {
    Exporter::new(ExporterSettings::default()).unwrap()
}

fn handle(exporter: &Exporter, address: Address) -> umf_ipc::Handle {
    // SAFETY: the tests access the memory only by copies.
    unsafe { exporter.handle(address) }.unwrap()
}

/// A provider of host memory that blocks in `unexport`, and counts native exports.
struct Slow {
    host: Arc<HostProvider>,
    exports: Mutex<HashMap<RegionId, u32>>,
    /// `unexport` blocks while this is set.
    blocks_unexport: AtomicBool,
    has_entered_unexport: AtomicBool,
    freed_while_exported: AtomicBool,
}

// SAFETY: the host provider implements all calls.
unsafe impl Provider for Slow {
    fn kind(&self) -> ProviderKind {
        self.host.kind()
    }
    fn name(&self) -> &str {
        "slow"
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
    fn allocate(&self, layout: Layout) -> Result<Region, Error> {
        self.host.allocate(layout)
    }
    unsafe fn free(&self, region: Region) -> Result<(), Error> {
        if self.exports.lock().unwrap().get(&region.id()).is_some_and(|&count| count > 0) {
            self.freed_while_exported.store(true, Ordering::SeqCst);
        }
        // SAFETY: the caller's contract is that of the host provider.
        unsafe { self.host.free(region) }
    }
    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }
}

impl Export for Slow {
    fn export(&self, region: &Region) -> Result<NativeExport, Error> {
        let mut exports = self.exports.lock().unwrap();
        let count = exports.entry(region.id()).or_default();
        *count += 1;
        assert_eq!(*count, 1, "one native export of a region at a time");
        Provider::export(&*self.host).unwrap().export(region)
    }
    fn unexport(&self, region: &Region, export: NativeExport) -> Result<(), Error> {
        self.has_entered_unexport.store(true, Ordering::SeqCst);
        while self.blocks_unexport.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        *self.exports.lock().unwrap().entry(region.id()).or_default() -= 1;
        Provider::export(&*self.host).unwrap().unexport(region, export)
    }
}

/// An eviction retires all exports before it ends the first native export. A region that is freed
/// meanwhile waits for its native export to end.
#[test]
fn evicted_export_is_stale_before_unexport() {
    let provider = Arc::new(Slow {
        host: shared(),
        exports: Mutex::default(),
        blocks_unexport: AtomicBool::new(true),
        has_entered_unexport: AtomicBool::new(false),
        freed_while_exported: AtomicBool::new(false),
    });
    let pool = ProxyPool::new(Arc::clone(&provider)).unwrap();
    let (exporter, importer) = (exporter(), importer());
    let layout = Layout::new(65536, 16).unwrap();
    let blocks: Vec<_> = (0..32)
        .map(|_| {
            let address = pool.allocate(layout).unwrap();
            // SAFETY: the test does not touch the memory.
            (address, *unsafe { exporter.get(address) }.unwrap().handle())
        })
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| exporter.evict_idle());
        while !provider.has_entered_unexport.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        for (_, handle) in &blocks {
            assert!(matches!(importer.open(handle), Err(IpcError::Stale { .. })));
        }
        // Exported again, or freed, while the old native export ends.
        let again = scope.spawn(|| handle(&exporter, blocks[0].0));
        let freed = scope.spawn(|| {
            for (address, _) in &blocks[1..] {
                // SAFETY: the test does not use the block.
                unsafe { pool.free(*address) }.unwrap();
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        provider.blocks_unexport.store(false, Ordering::SeqCst);
        freed.join().unwrap();
        assert!(importer.open(&again.join().unwrap()).is_ok());
    });
    assert!(!provider.freed_while_exported.load(Ordering::SeqCst), "freed with a native export");
    // SAFETY: the test does not use the block.
    unsafe { pool.free(blocks[0].0) }.unwrap();
    assert!(
        provider.exports.lock().unwrap().values().all(|&count| count == 0),
        "every native export has ended"
    );
}

/// Blocks that are freed while their exporter is dropped do not open afterwards.
#[test]
fn dropped_exporter_retires_its_exports() {
    let importer = importer();
    for _ in 0..60 {
        let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
        let mut settings = ExporterSettings::default();
        // With a socket thread, for which the drop waits.
        settings.exchange = Exchange::Order(vec![Mode::Pidfd, Mode::Socket]);
        let exporter = Exporter::new(settings).unwrap();
        let layout = Layout::new(256, 16).unwrap();
        let blocks: Vec<_> = (0..1000)
            .map(|_| {
                let address = pool.allocate(layout).unwrap();
                (address, handle(&exporter, address))
            })
            .collect();
        drop(importer.open(&blocks[0].1).unwrap());
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                drop(exporter);
            });
            start.wait();
            for (address, handle) in &blocks {
                // SAFETY: the test does not use the block.
                unsafe { pool.free(*address) }.unwrap();
                assert!(importer.open(handle).is_err(), "opened after it was freed");
            }
        });
        assert!(blocks.iter().all(|(_, handle)| importer.open(handle).is_err()));
    }
}

/// A block that is freed while an importer has it open is held, even if other blocks of its region
/// are exported meanwhile.
#[test]
fn open_block_is_held_while_others_are_exported() {
    let (exporter, importer) = (exporter(), importer());
    let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
    let layout = Layout::new(256, 16).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Many addresses, so that the exporter sometimes removes ended exports.
            let mut blocks: VecDeque<_> = (0..2_000).map(|_| pool.allocate(layout).unwrap()).collect();
            while !stop.load(Ordering::Relaxed) {
                let address = blocks.pop_front().unwrap();
                handle(&exporter, address);
                // SAFETY: the test does not use the block.
                unsafe { pool.free(address) }.unwrap();
                blocks.push_back(pool.allocate(layout).unwrap());
            }
        });
        let missed = (0..20_000).position(|_| {
            let address = pool.allocate(layout).unwrap();
            let mapping = importer.open(&handle(&exporter, address)).unwrap();
            // SAFETY: the mapping treats the block as memory that other processes write.
            unsafe { pool.free(address) }.unwrap();
            let is_held = pool.statistics().held_bytes == 256;
            drop(mapping);
            pool.controls().unwrap().drain(std::time::Duration::from_secs(9));
            !is_held
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(missed, None, "not held while it is open");
    });
    assert_eq!(exporter.statistics().in_use, 0, "freed blocks are not in use");
}

/// Getting the handle of a block many times keeps it in use once.
#[test]
fn repeated_handle_is_one_use() {
    let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
    let exporter = exporter();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    let first = handle(&exporter, address);
    for _ in 0..1000 {
        assert_eq!(handle(&exporter, address), first);
    }
    assert_eq!(exporter.evict_idle(), 0, "kept");
    assert_eq!(exporter.statistics().in_use, 1);
    // SAFETY: the test does not use the block.
    unsafe { pool.free(address) }.unwrap();
    assert_eq!(exporter.statistics().in_use, 0, "one use, and it ended with the block");
    assert_eq!(exporter.evict_idle(), 1);
}

/// Keeping an export after its block was freed does not keep a new block at its address.
#[test]
fn keep_after_free_keeps_nothing() {
    let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
    let exporter = exporter();
    let allocate = || pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    // SAFETY: the test does not use the block, here and below.
    let free = |address| unsafe { pool.free(address) }.unwrap();
    let address = allocate();
    // SAFETY: the test does not touch the memory, here and below.
    let old = unsafe { exporter.get(address) }.unwrap();
    free(address);
    // Allocates until the address is used again.
    assert!((0..10_000).any(|_| allocate() == address));
    // SAFETY: as above.
    let new = unsafe { exporter.get(address) }.unwrap();
    assert_eq!(exporter.statistics().in_use, 1);
    let _ = old.keep();
    free(address);
    assert_eq!(exporter.evict_idle(), 0, "its region is in use");
    drop(new);
    assert_eq!(exporter.evict_idle(), 1);
}

/// Runs `child` in a forked child, and fails if it returns `false`.
fn in_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child runs the closure in one thread and ends without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!child());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed");
}

/// A child that has exported nothing forks again, after the descriptor number of its parent's
/// ledger was reused for another file.
#[test]
fn fork_of_a_child_closes_no_reused_descriptor() {
    let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
    let exporter = exporter();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    let ledger = handle(&exporter, address).ledger_fd();
    in_child(|| {
        let mut files = Vec::new();
        while files.len() < 200 && files.last().is_none_or(|file: &std::fs::File| file.as_raw_fd() != ledger)
        {
            files.push(std::fs::File::open("/proc/self/status").unwrap());
        }
        // No file of the child may be closed in its own child, even if that number was not reached.
        in_child(|| files.iter().all(|file| file.metadata().is_ok()));
        true
    });
}
