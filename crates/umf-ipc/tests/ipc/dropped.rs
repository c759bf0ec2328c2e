//! Exporters and importers that were dropped: their handles fail, and they leave no mapping. Each
//! test runs alone in a process, whose mappings it counts or whose descriptor numbers it relies on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Error, Exporter, ExporterSettings, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};
use umf_runtime::deferred;

use crate::alone::ran_alone;

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Exporters and importers that were dropped leave no mapping.
#[test]
fn dropped_objects_leave_no_mapping() {
    if ran_alone("dropped::dropped_objects_leave_no_mapping") {
        return;
    }
    let provider: Arc<HostProvider> = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let exporter = || Exporter::new(ExporterSettings::default()).unwrap();
    let long_lived = exporter();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    // SAFETY: the test does not touch the memory.
    let handle = unsafe { long_lived.handle(address) }.unwrap();
    let round = || {
        let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
        drop(importer.open(&handle).unwrap());
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
    // The heap may have grown by one mapping.
    assert!(mappings() <= before + 2, "{before} mappings became {}", mappings());
}

/// A handle of a dropped exporter fails as `ProducerGone`, even if the ledger's descriptor number
/// was reused.
#[test]
fn handle_of_dropped_exporter_fails_as_producer_gone() {
    if ran_alone("dropped::handle_of_dropped_exporter_fails_as_producer_gone") {
        return;
    }
    let provider: Arc<HostProvider> = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
    let exporter = || Exporter::new(ExporterSettings::default()).unwrap();
    let first = exporter();
    // SAFETY: the test does not touch the memory.
    let handle = unsafe { first.handle(address) }.unwrap();
    if handle.pidfs_inode() == 0 {
        println!("umf-skip: handle_of_dropped_exporter_fails_as_producer_gone: no pidfs (Linux 6.9)");
        return;
    }
    drop(first);
    let open = || {
        let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
        importer.open(&handle).map(drop).unwrap_err()
    };
    let gone = Error::ProducerGone { pid: std::process::id() };
    assert_eq!(open(), gone, "the ledger's descriptor number is free");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(open(), gone, "the number is a file's");
    drop(file);
    let second = exporter();
    // SAFETY: as above.
    drop(unsafe { second.get(address) }.unwrap());
    assert_eq!(open(), gone, "the number is another exporter's");
}

/// The ledger of a dropped exporter lives until its last block is closed, whether the block was
/// freed or not.
#[test]
fn ledger_of_dropped_exporter_lives_until_last_close() {
    if ran_alone("dropped::ledger_of_dropped_exporter_lives_until_last_close") {
        return;
    }
    let provider: Arc<HostProvider> = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    for is_freed in [true, false] {
        let address = pool.allocate(Layout::new(4096, 16).unwrap()).unwrap();
        let exporter = Exporter::new(ExporterSettings::default()).unwrap();
        // SAFETY: the test does not touch the memory.
        let handle = unsafe { exporter.handle(address) }.unwrap();
        let importer = || Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
        let first = importer();
        let mapping = first.open(&handle).unwrap();
        let error = || importer().open(&handle).map(drop).unwrap_err();
        if is_freed {
            // SAFETY: allocated above, and not used any more.
            unsafe { pool.free(address) }.unwrap();
        }
        drop(exporter);
        deferred::poll();
        assert!(matches!(error(), Error::Stale { .. }), "still open: {:?}", error());
        drop(mapping);
        deferred::poll();
        let gone = error();
        assert!(matches!(gone, Error::ProducerGone { .. } | Error::ProducerReplaced { .. }), "{gone:?}");
    }
}
