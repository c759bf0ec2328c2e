//! What is left of exporters and importers that were dropped. Alone in its process, because it
//! counts all mappings.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::sync::Arc;

use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Exporters and importers that come and go leave no mapping.
#[test]
fn nothing_stays_of_what_was_dropped() {
    if ran_alone("dropped::nothing_stays_of_what_was_dropped") {
        return;
    }
    let provider: Arc<HostProvider> = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let exporter = || Exporter::new(ExporterSettings::default()).unwrap();
    let exporter_kept = exporter();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    // SAFETY: the test does not touch the memory.
    let kept = unsafe { exporter_kept.handle(address) }.unwrap();
    let round = || {
        let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
        drop(importer.open(&kept).unwrap());
        let exporter = exporter();
        // SAFETY: as above.
        drop(unsafe { exporter.get(address) }.unwrap());
    };
    for _ in 0..20 {
        round();
    }
    let before = mappings();
    for _ in 0..200 {
        round();
    }
    // The heap may have grown by one.
    assert!(mappings() <= before + 2, "{before} mappings became {}", mappings());
}
