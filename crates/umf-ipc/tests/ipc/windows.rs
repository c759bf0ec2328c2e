//! Windows of pools that are gone do not pile up in an importer. Alone in its process, because it
//! counts all mappings.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::sync::Arc;

use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

/// More than the importer's cache keeps before it looks for dead entries (16, `DEAD` in `cache`),
/// several times over.
const POOLS: usize = 200;

#[test]
fn windows_of_destroyed_pools_are_unmapped() {
    if ran_alone("windows::windows_of_destroyed_pools_are_unmapped") {
        return;
    }
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
    for _ in 0..POOLS {
        let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
        let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
        let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
        // SAFETY: the test does not touch the memory.
        let handle = unsafe { exporter.handle(address) }.unwrap();
        drop(importer.open(&handle).unwrap());
    }
    let statistics = importer.statistics();
    assert!(statistics.misses >= POOLS as u64, "each pool had a window of its own: {statistics:?}");
    assert!(statistics.entries < 40, "{statistics:?}");
    // The exporter maps nothing of its own for a destroyed pool.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:umf") && !line.contains("leases")).count();
    assert!(mapped < 100, "{mapped} mappings of memfds after {POOLS} pools:\n{maps}");
}
