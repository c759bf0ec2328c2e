//! Address space and locked memory: limits that fail an export or an open, and mappings that must
//! not accumulate. Each test runs alone in a process, whose limits it sets or whose mappings it
//! counts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Error, Exporter, ExporterSettings, Handle, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

use crate::alone::ran_alone;

fn importer() -> Importer {
    Importer::builder().import(Arc::new(HostImport::new())).build().unwrap()
}

fn shared_pool() -> Arc<SlabPool> {
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    SlabPool::new(provider, SlabSettings::new()).unwrap()
}

/// The address space of this process, in bytes (`proc_pid_statm(5)`).
fn size() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Batch systems set `RLIMIT_AS`. Address space that does not suffice for a window may suffice for
/// a region.
#[test]
fn region_is_mapped_if_no_window_fits() {
    if ran_alone("memory_limits::region_is_mapped_if_no_window_fits") {
        return;
    }
    let pool = shared_pool();
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let importer = importer();
    let blocks = [(); 2].map(|()| pool.allocate(Layout::new(4096, 16).unwrap()).unwrap());
    // SAFETY: the test touches the memory by copies alone.
    let handles = blocks.map(|block| unsafe { exporter.handle(block) }.unwrap());
    let before = getrlimit(Resource::As);
    let limit = Rlimit { current: Some(size() + (1 << 30)), maximum: before.maximum };
    setrlimit(Resource::As, limit).unwrap();
    let opened = handles.each_ref().map(|handle| importer.open(handle));
    let again = handles.each_ref().map(|handle| importer.open_read_only(handle));
    setrlimit(Resource::As, before).unwrap();
    for mapping in opened.into_iter().chain(again) {
        assert_eq!(mapping.unwrap().len(), 4096);
    }
    assert!(importer.statistics().bytes < 1 << 30, "{:?}", importer.statistics());
}

/// Returns a pool with a file of its own, and the handle of a block in it.
fn pool_and_handle(exporter: &Exporter) -> (Arc<SlabPool>, Handle) {
    let pool = shared_pool();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    // SAFETY: the test does not touch the memory.
    let handle = unsafe { exporter.handle(address) }.unwrap();
    (pool, handle)
}

#[test]
fn open_without_address_space_closes_idle_windows() {
    if ran_alone("memory_limits::open_without_address_space_closes_idle_windows") {
        return;
    }
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let importer = importer();
    let pools: Vec<_> = (0..3).map(|_| pool_and_handle(&exporter)).collect();
    let (in_use, idle, new) = (&pools[0].1, &pools[1].1, &pools[2].1);
    let kept = importer.open(in_use).unwrap();
    drop(importer.open(idle).unwrap());
    let windows = importer.statistics();
    let before = getrlimit(Resource::As);
    // Less than a window. The idle window is closed for the new one.
    let limit = Rlimit { current: Some(size() + (1 << 30)), maximum: before.maximum };
    setrlimit(Resource::As, limit).unwrap();
    let opened = importer.open(new).map(drop);
    setrlimit(Resource::As, before).unwrap();
    opened.unwrap();
    let after = importer.statistics();
    assert_eq!((windows.entries, after.entries, after.bytes), (2, 2, windows.bytes), "{after:?}");
    assert_eq!(after.evictions, windows.evictions + 1, "{after:?}");
    assert!(kept.is_current());
}

/// Several times the entries at which the importer's cache sweeps dead ones (`SWEEP_SLACK`).
const POOLS: usize = 200;

#[test]
fn windows_of_destroyed_pools_are_unmapped() {
    if ran_alone("memory_limits::windows_of_destroyed_pools_are_unmapped") {
        return;
    }
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let importer = importer();
    for _ in 0..POOLS {
        let pool = shared_pool();
        let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
        // SAFETY: the test does not touch the memory.
        let handle = unsafe { exporter.handle(address) }.unwrap();
        drop(importer.open(&handle).unwrap());
    }
    let statistics = importer.statistics();
    assert!(statistics.misses >= POOLS as u64, "each pool had a window of its own: {statistics:?}");
    assert!(statistics.entries < 40, "{statistics:?}");
    // The exporter has no mapping for a destroyed pool.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:umf") && !line.contains("leases")).count();
    assert!(mapped < 100, "{mapped} mappings of memfds after {POOLS} pools:\n{maps}");
}

/// Blocks whose exports need tables of more than 10 MiB.
const BLOCKS: usize = 100_000;
/// Address space that is left for the tables, in bytes.
const LEFT: u64 = 2 << 20;

#[test]
fn export_without_memory_fails() {
    if ran_alone("memory_limits::export_without_memory_fails") {
        return;
    }
    let pool = shared_pool();
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let layout = Layout::new(16, 16).unwrap();
    let blocks: Vec<_> = (0..BLOCKS).map(|_| pool.allocate(layout).unwrap()).collect();
    // The first export maps the ledger and the lease table, which are larger than the limit.
    // SAFETY: the test does not touch the memory.
    unsafe { exporter.handle(blocks[0]) }.unwrap();
    let before = getrlimit(Resource::As);
    let limit = Rlimit { current: Some(size() + LEFT), maximum: before.maximum };
    setrlimit(Resource::As, limit).unwrap();
    // SAFETY: as above.
    let failed = blocks.iter().find_map(|&block| unsafe { exporter.handle(block) }.err().map(|e| (block, e)));
    setrlimit(Resource::As, before).unwrap();
    let (block, error) = failed.expect("the table of exports does not fit");
    assert!(matches!(error, Error::Memory(umf_core::Error::OutOfMemory { .. })), "{error}");
    // SAFETY: as above.
    unsafe { exporter.handle(block) }.unwrap();
}

/// The most resident memory that an export or an open may add, in bytes. The window has 4 GiB.
const MOST: u64 = 64 << 20;

/// The resident memory of this process, in bytes (`proc_pid_statm(5)`).
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Returns whether the kernel lets this process lock a mapping of that size.
fn fits(size: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, which nothing uses.
    unsafe {
        let probe = libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0);
        probe != libc::MAP_FAILED && libc::munmap(probe, size) == 0
    }
}

#[test]
fn export_and_open_allocate_little_under_mlockall() {
    if ran_alone("memory_limits::export_and_open_allocate_little_under_mlockall") {
        return;
    }
    use rustix::process::{Resource, getrlimit};
    let pool = shared_pool();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    let may_lock = rustix::process::geteuid().is_root() || getrlimit(Resource::Memlock).current.is_none();
    // SAFETY: locking changes no memory.
    if !may_lock || unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 || !fits(8 << 30) {
        println!(
            "umf-skip: export_and_open_allocate_little_under_mlockall: this process may not lock its memory; run it with \
             CAP_IPC_LOCK or `ulimit -l unlimited`"
        );
        return;
    }
    let before = resident();
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    // SAFETY: the test touches the memory by copies alone.
    let handle = unsafe { exporter.handle(address) }.unwrap();
    let exported = resident();
    let importer = importer();
    let mapping = importer.open(&handle).unwrap();
    let opened = resident();
    mapping.write(0, b"here").unwrap();
    drop(mapping);
    assert!(exported < before + MOST, "the first export added {} bytes", exported - before);
    assert!(opened < exported + MOST, "the first open added {} bytes", opened - exported);
}
