//! An export without memory fails with an error. Alone in its process, whose limit it sets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Error, Exporter, ExporterSettings};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::HostProvider;

/// So many exports need tables of more than 10 MiB.
const BLOCKS: usize = 100_000;
/// Address space that is left for them, in bytes.
const LEFT: u64 = 2 << 20;

/// The address space of this process, in bytes (`proc_pid_statm(5)`).
fn size() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn export_without_memory_is_an_error_and_no_abort() {
    if ran_alone("export_memory::export_without_memory_is_an_error_and_no_abort") {
        return;
    }
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
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
