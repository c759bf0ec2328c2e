//! Opening where address space is short.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::sync::Arc;

use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

/// The address space of this process, in bytes (`proc_pid_statm(5)`).
fn size() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Batch systems set `RLIMIT_AS`: what is too little for a window may be enough for a region. (The
/// only test of its process, since the limit is the whole process's.)
#[test]
fn a_region_is_opened_where_no_window_fits() {
    if ran_alone("address_space::a_region_is_opened_where_no_window_fits") {
        return;
    }
    let host = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(host, SlabSettings::new()).unwrap();
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let importer = Importer::builder().import(Arc::new(HostImport::new())).build().unwrap();
    let blocks = [(); 2].map(|()| pool.allocate(Layout::new(4096, 16).unwrap()).unwrap());
    // SAFETY: the test touches the memory by copies alone.
    let handles = blocks.map(|block| unsafe { exporter.handle(block) }.unwrap());
    let before = rustix::process::getrlimit(rustix::process::Resource::As);
    let current = Some(size() + (1 << 30));
    let less = rustix::process::Rlimit { current, maximum: before.maximum };
    rustix::process::setrlimit(rustix::process::Resource::As, less).unwrap();
    let opened = handles.each_ref().map(|handle| importer.open(handle));
    let again = handles.each_ref().map(|handle| importer.open_read_only(handle));
    rustix::process::setrlimit(rustix::process::Resource::As, before).unwrap();
    for mapping in opened.into_iter().chain(again) {
        assert_eq!(mapping.unwrap().len(), 4096);
    }
    assert!(importer.statistics().bytes < 1 << 30, "{:?}", importer.statistics());
}
