//! Reads and writes over the fabric, with server and importer in one process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use umf_core::{Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Handle, Importer};
use umf_pool_proxy::ProxyPool;
use umf_remote::{Error, RemoteHandle, RemoteImporter, RemoteSettings, Server};

struct Producer {
    pool: Arc<dyn Pool>,
    exporter: &'static Exporter,
    importer: &'static Importer,
}

impl Producer {
    fn new() -> Self {
        let host = umf_provider_host::HostProvider::builder().visibility(Visibility::Shared);
        let pool = ProxyPool::new(host.build().unwrap()).unwrap();
        let exporter = Box::leak(Box::new(Exporter::new(ExporterSettings::default()).unwrap()));
        let import = Arc::new(umf_provider_host::HostImport::new());
        let importer = Box::leak(Box::new(Importer::builder().import(import).build().unwrap()));
        Self { pool, exporter, importer }
    }

    fn block(&self, size: usize, seed: u8) -> (umf_core::Address, Handle) {
        let address = self.pool.allocate(Layout::new(size, 64).unwrap()).unwrap();
        let bytes: Vec<u8> = pattern(size, seed);
        // SAFETY: the block is of the test, and has that size.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.as_ptr().unwrap(), size);
            (address, self.exporter.handle_with_len(address, size).unwrap())
        }
    }
}

fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

fn settings() -> RemoteSettings {
    let mut settings = RemoteSettings::new();
    settings.local = false;
    let variable = umf_os::environment::variable;
    if let Some(library) = variable("UMF_REMOTE_LIBRARY") {
        settings.library = library.into();
    }
    match variable("UMF_REMOTE_PROVIDER").and_then(|name| name.into_string().ok()) {
        Some(provider) => settings.provider = provider,
        None => settings.interface = "127.0.0.1".to_owned(),
    }
    settings
}

fn server(producer: &Producer, settings: &RemoteSettings) -> Option<Server> {
    match Server::start(producer.exporter, producer.importer, settings) {
        Ok(server) => Some(server),
        Err(error @ Error::NoLibrary(_)) => {
            println!("umf-skip: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn reads_of_all_sizes() {
    let producer = Producer::new();
    let settings = settings();
    let Some(server) = server(&producer, &settings) else { return };
    let importer = RemoteImporter::new(producer.importer, settings);
    let size = 5 << 20;
    let (address, handle) = producer.block(size, 3);
    let expected = pattern(size, 3);
    let bytes = server.remote_handle(&handle).unwrap().to_bytes();
    let remote = importer.open_bytes(&bytes).unwrap();
    assert_eq!(remote.len(), size);
    for (offset, length) in
        [(0, 1), (0, 0), (size, 0), (7, 100), (0, 16256), (1, 16257), (5, 1 << 20), (0, size), (size - 1, 1)]
    {
        let data = remote.read(offset, length).unwrap();
        assert!(*data == expected[offset..offset + length], "{offset} {length}");
        let mut into = vec![0; length];
        remote.read_into(offset, &mut into).unwrap();
        assert!(into == expected[offset..offset + length], "{offset} {length}");
    }
    let many = remote.read_many(&[(0, 10), (100, 100_000), (7, 16)]).unwrap();
    assert!(*many[1] == expected[100..100_100] && *many[2] == expected[7..23]);
    assert!(remote.is_current().unwrap());
    assert!(matches!(remote.read(size, 1), Err(Error::OutOfBounds { .. })));

    let grant = remote.grant(Duration::from_secs(5)).unwrap();
    let new = pattern(3 << 20, 77);
    grant.write(13, &new).unwrap();
    grant.write(1, b"small").unwrap();
    assert!(*remote.read(13, new.len()).unwrap() == new);
    assert_eq!(&*remote.read(1, 5).unwrap(), b"small");
    assert_eq!(server.statistics().grants, 1);
    grant.end().unwrap();

    // SAFETY: nothing uses the block.
    unsafe { producer.pool.free(address) }.unwrap();
    for length in [10, 100_000, 0] {
        assert!(matches!(remote.read(0, length), Err(Error::Stale { .. })), "{length}");
    }
    assert!(!remote.is_current().unwrap());
    println!("{:?} {}", server.statistics(), server.address());
}

#[test]
fn bytes_and_text_of_a_remote_handle() {
    let producer = Producer::new();
    let Some(server) = server(&producer, &settings()) else { return };
    let (_, handle) = producer.block(100, 0);
    let remote = server.remote_handle(&handle).unwrap();
    let bytes = remote.to_bytes();
    assert!(bytes.len() <= RemoteHandle::MAX_SIZE);
    assert_eq!(RemoteHandle::from_bytes(&bytes).unwrap(), remote);
    assert_eq!(remote.to_string().parse::<RemoteHandle>().unwrap(), remote);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(RemoteHandle::from_bytes(&damaged).is_err(), "{at}");
        assert!(RemoteHandle::from_bytes(&bytes[..at]).is_err(), "{at}");
    }
}
