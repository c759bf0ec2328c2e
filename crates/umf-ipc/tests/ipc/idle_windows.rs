//! Idle windows make room where address space is short. Alone in its process, whose limit it sets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Handle, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

/// The address space of this process, in bytes (`proc_pid_statm(5)`).
fn size() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// A pool of its own file, and the handle of a block in it.
fn pool(exporter: &Exporter) -> (Arc<SlabPool>, Handle) {
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    // SAFETY: the test does not touch the memory.
    let handle = unsafe { exporter.handle(address) }.unwrap();
    (pool, handle)
}

#[test]
fn open_without_address_space_closes_idle_windows() {
    if ran_alone("idle_windows::open_without_address_space_closes_idle_windows") {
        return;
    }
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
    let pools: Vec<_> = (0..3).map(|_| pool(&exporter)).collect();
    let (in_use, idle, new) = (&pools[0].1, &pools[1].1, &pools[2].1);
    let kept = importer.open(in_use).unwrap();
    drop(importer.open(idle).unwrap());
    let windows = importer.statistics();
    let before = getrlimit(Resource::As);
    // Less than a window, which is closed for the new one.
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
