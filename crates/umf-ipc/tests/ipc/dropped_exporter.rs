//! The error of handles whose exporter was dropped. Alone in its process, because it counts on the
//! numbers of descriptors.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::sync::Arc;

use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Error, Exporter, ExporterSettings, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};
use umf_runtime::deferred;

/// A handle of a dropped exporter names no other process, whatever has the exporter's descriptors
/// by now.
#[test]
fn handle_of_dropped_exporter_is_of_a_producer_that_is_gone() {
    if ran_alone("dropped_exporter::handle_of_dropped_exporter_is_of_a_producer_that_is_gone") {
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
        println!("umf-skip: handle_of_dropped_exporter_is_of_a_producer_that_is_gone: no pidfs (Linux 6.9)");
        return;
    }
    drop(first);
    let open = || {
        let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
        importer.open(&handle).map(drop).unwrap_err()
    };
    let gone = Error::ProducerGone { pid: std::process::id() };
    assert_eq!(open(), gone, "its number is free");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(open(), gone, "its number is a file's, or another exporter's, or free");
    drop(file);
    let second = exporter();
    // SAFETY: as above.
    drop(unsafe { second.get(address) }.unwrap());
    assert_eq!(open(), gone, "its number is another exporter's, or free");
}

/// What a dropped exporter kept for memory that was open elsewhere goes when that is closed,
/// whether the block was freed or not.
#[test]
fn ledger_of_dropped_exporter_goes_with_last_open() {
    if ran_alone("dropped_exporter::ledger_of_dropped_exporter_goes_with_last_open") {
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
        assert!(matches!(error(), Error::Stale { .. }), "open elsewhere: {:?}", error());
        drop(mapping);
        deferred::poll();
        let gone = error();
        assert!(matches!(gone, Error::ProducerGone { .. } | Error::ProducerReplaced { .. }), "{gone:?}");
    }
}
