//! A producer in the process of the tests, and its server.

use std::sync::Arc;

use umf_core::{Address, Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Handle, Importer};
use umf_pool_proxy::ProxyPool;
use umf_remote::{Error, RemoteSettings, Server};

/// A pool, and what exports and opens its blocks.
pub(crate) struct Producer {
    pool: Arc<dyn Pool>,
    exporter: &'static Exporter,
    pub(crate) importer: &'static Importer,
}

impl Producer {
    pub(crate) fn new(has_leases: bool) -> Self {
        let host = umf_provider_host::HostProvider::builder().visibility(Visibility::Shared);
        let pool = ProxyPool::new(host.build().unwrap()).unwrap();
        let exporter = Box::leak(Box::new(Exporter::new(ExporterSettings::default()).unwrap()));
        let import = Arc::new(umf_provider_host::HostImport::new());
        let importer = Importer::builder().import(import).leases(has_leases).build().unwrap();
        Self { pool, exporter, importer: Box::leak(Box::new(importer)) }
    }

    /// Allocates a block that is filled with a byte.
    pub(crate) fn block(&self, size: usize, byte: u8) -> (Address, Handle) {
        self.block_of(&vec![byte; size])
    }

    /// Allocates a block with this content.
    pub(crate) fn block_of(&self, content: &[u8]) -> (Address, Handle) {
        let size = content.len();
        let address = self.pool.allocate(Layout::new(size, 64).unwrap()).unwrap();
        // SAFETY: the block is of the test, and has that size.
        unsafe {
            std::ptr::copy_nonoverlapping(content.as_ptr(), address.as_ptr().unwrap(), size);
            (address, self.exporter.handle_with_len(address, size).unwrap())
        }
    }

    pub(crate) fn free(&self, address: Address) {
        // SAFETY: only the fabric uses the block.
        unsafe { self.pool.free(address) }.unwrap();
    }
}

pub(crate) fn settings() -> RemoteSettings {
    let mut settings = RemoteSettings::new();
    settings.local = false;
    // For a busy machine.
    settings.timeout = std::time::Duration::from_secs(20);
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

pub(crate) fn serve(producer: &Producer, settings: &RemoteSettings) -> Option<Server> {
    match Server::start(producer.exporter, producer.importer, settings) {
        Ok(server) => Some(server),
        Err(error @ Error::NoLibrary(_)) => {
            println!("umf-skip: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
