//! What a process that locks all of its memory (`mlockall(2)`) pays for exporting and for opening.
//! Alone in its process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::sync::Arc;

use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

/// What an export or an open may add, in bytes. The window that is mapped has 4 GiB.
const MOST: u64 = 64 << 20;

/// The memory of this process that is there, in bytes (`proc_pid_statm(5)`).
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Whether the kernel lets this process have locked addresses of that size.
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
    if ran_alone("locked_memory::export_and_open_allocate_little_under_mlockall") {
        return;
    }
    use rustix::process::{Resource, getrlimit};
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
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
    let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
    let mapping = importer.open(&handle).unwrap();
    let opened = resident();
    mapping.write(0, b"here").unwrap();
    drop(mapping);
    assert!(exported < before + MOST, "the first export added {} bytes", exported - before);
    assert!(opened < exported + MOST, "the first open added {} bytes", opened - exported);
}
