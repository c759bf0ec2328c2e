//! Uses a link, or a mesh, whose peer writes arbitrary bytes into its lane. Every call returns a
//! result or an error, and accesses only its own memory.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use umf_core::{Layout, Pool, View, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_link::Memory;
use umf_pool_proxy::ProxyPool;
use umf_provider_host::{HostImport, HostProvider};

/// Exported memory of this process, and memory that the peer claims as its own.
static MEMORIES: LazyLock<[Memory<'static>; 2]> = LazyLock::new(|| [memory(), memory()]);
static IMPORTER: LazyLock<Importer> =
    LazyLock::new(|| Importer::builder().import(Arc::new(HostImport::new())).build().expect("an importer"));

static EXPORTER: LazyLock<Exporter> =
    LazyLock::new(|| Exporter::new(ExporterSettings::default()).expect("an exporter"));
static POOL: LazyLock<Arc<ProxyPool>> = LazyLock::new(|| {
    let provider = HostProvider::builder().visibility(Visibility::Shared).isolate(true).build();
    ProxyPool::new(provider.expect("a provider")).expect("a pool")
});

fn memory() -> Memory<'static> {
    const SIZE: usize = 72_000;
    let address = POOL.allocate(Layout::new(SIZE, 16).expect("a layout")).expect("a block");
    // SAFETY: the block is never freed, and no reference points into it.
    let handle = unsafe { EXPORTER.handle(address) }.expect("a handle");
    // SAFETY: the block has `SIZE` bytes and is never freed.
    let slice = unsafe { View::new(address.as_ptr().expect("host memory"), SIZE) };
    Memory::new(&handle, slice.expect("a view")).expect("the handle's memory")
}

fuzz_target!(|data: &[u8]| match data.split_last() {
    Some((last, data)) if last & 1 == 1 => {
        umf_link::fuzz::hostile_mesh_peer(data, &MEMORIES[1], &IMPORTER);
    }
    _ => umf_link::fuzz::hostile_peer(data, MEMORIES.each_ref(), &IMPORTER),
});
