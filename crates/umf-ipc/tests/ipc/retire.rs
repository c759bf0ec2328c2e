//! Exports retire before their memory goes, also in the moments when an exporter is busy with them.

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
    // SAFETY: the tests touch the memory by copies alone.
    unsafe { exporter.handle(address) }.unwrap()
}

/// Host memory whose native exports take their time to be given back, and that knows which are out.
struct Slow {
    host: Arc<HostProvider>,
    out: Mutex<HashMap<RegionId, u32>>,
    hold: AtomicBool,
    held: AtomicBool,
    freed_while_out: AtomicBool,
}

// SAFETY: everything is done by the host provider.
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
        if self.out.lock().unwrap().get(&region.id()).is_some_and(|&count| count > 0) {
            self.freed_while_out.store(true, Ordering::SeqCst);
        }
        // SAFETY: passed on.
        unsafe { self.host.free(region) }
    }
    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }
}

impl Export for Slow {
    fn export(&self, region: &Region) -> Result<NativeExport, Error> {
        let mut out = self.out.lock().unwrap();
        let count = out.entry(region.id()).or_default();
        *count += 1;
        assert_eq!(*count, 1, "one native export of a region at a time");
        Provider::export(&*self.host).unwrap().export(region)
    }
    fn unexport(&self, region: &Region, export: NativeExport) -> Result<(), Error> {
        self.held.store(true, Ordering::SeqCst);
        while self.hold.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        *self.out.lock().unwrap().entry(region.id()).or_default() -= 1;
        Provider::export(&*self.host).unwrap().unexport(region, export)
    }
}

/// An eviction that is slow in giving native exports back has retired all of them before; a region
/// that is freed meanwhile waits for its own.
#[test]
fn what_is_evicted_is_stale_before_it_is_given_back() {
    let provider = Arc::new(Slow {
        host: shared(),
        out: Mutex::default(),
        hold: AtomicBool::new(true),
        held: AtomicBool::new(false),
        freed_while_out: AtomicBool::new(false),
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
        while !provider.held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        for (_, handle) in &blocks {
            assert!(matches!(importer.open(handle), Err(IpcError::Stale { .. })));
        }
        // Exported again while the old native export is on its way, and freed while it is.
        let again = scope.spawn(|| handle(&exporter, blocks[0].0));
        let freed = scope.spawn(|| {
            for (address, _) in &blocks[1..] {
                // SAFETY: the test does not use the block.
                unsafe { pool.free(*address) }.unwrap();
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        provider.hold.store(false, Ordering::SeqCst);
        freed.join().unwrap();
        assert!(importer.open(&again.join().unwrap()).is_ok());
    });
    assert!(!provider.freed_while_out.load(Ordering::SeqCst), "freed with a native export out");
    // SAFETY: the test does not use the block.
    unsafe { pool.free(blocks[0].0) }.unwrap();
    assert!(
        provider.out.lock().unwrap().values().all(|&count| count == 0),
        "every native export was given back"
    );
}

/// Blocks that are freed while their exporter is being dropped.
#[test]
fn an_exporter_that_goes_takes_its_exports_along() {
    let importer = importer();
    for _ in 0..60 {
        let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
        let mut settings = ExporterSettings::default();
        // With a socket thread to wait for, which makes it last.
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

/// Blocks that are freed while an importer has them open are held, even if blocks of the same
/// region are exported meanwhile.
#[test]
fn what_is_open_is_held_whatever_else_is_exported() {
    let (exporter, importer) = (exporter(), importer());
    let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
    let layout = Layout::new(256, 16).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of many addresses, so that the exporter clears away now and then what has ended.
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
        assert_eq!(missed, None, "used again while it is open");
    });
    assert_eq!(exporter.statistics().in_use, 0, "what was freed is in use no more");
}

/// Keeping a handle many times is one use, and costs the free nothing.
#[test]
fn a_block_is_kept_once() {
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

/// An export that is to be kept after its block was freed keeps nothing: not what is at its address
/// by then.
#[test]
fn what_is_kept_too_late_is_not_kept() {
    let pool = SlabPool::new(shared(), SlabSettings::new()).unwrap();
    let exporter = exporter();
    let allocate = || pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    // SAFETY: the test does not use the block, here and below.
    let free = |address| unsafe { pool.free(address) }.unwrap();
    let address = allocate();
    // SAFETY: the test does not touch the memory, here and below.
    let old = unsafe { exporter.get(address) }.unwrap();
    free(address);
    // (This test is about one address, whatever else comes before it.)
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

fn in_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child does what the test is about, in one thread, and ends without running
    // destructors.
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

/// A child that has exported nothing forks again: the fd number that its parent's ledger had is by
/// then another file's.
#[test]
fn a_second_fork_closes_nothing_of_others() {
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
        // Whether or not that number came: no file of the child may be closed in its own child.
        in_child(|| files.iter().all(|file| file.metadata().is_ok()));
        true
    });
}
