//! [`Server`]: makes this process's exported memory readable from other machines.
//!
//! A thread does all of it. It sleeps in the completion queue, which also lets the fabric answer
//! one-sided reads: most providers need a call of the target for that.
//!
//! Each importer has a *session*: an entry of the address vector, grants, and uses of
//! registrations. All sessions share one endpoint. (An endpoint for each would end with all that it
//! has. But libfabric 1.17 does not survive the end of one of several endpoints of a completion
//! queue.) So a buffer that is being sent to an importer which is lost is kept until its operation
//! has ended.

mod registered;
mod session;
mod state;

pub(crate) use registered::SLOT_SIZE;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use umf_ipc::{Exporter, Handle, Importer};
use umf_os::background::{self, Thread};
use umf_sync::fork;

use crate::fabric::{self, Addresses, Domain, Endpoint, Info, Query, Queue};
use crate::route::Route;
use crate::{Error, RemoteHandle, RemoteSettings, Result};
use state::State;

/// Serves this process's exported memory to other machines, until it is dropped.
///
/// In a forked child there is no server: its parent goes on serving.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<Thread>,
    exporter: &'static Exporter,
    route: Route,
    queue: Arc<Queue>,
    generation: u32,
}

/// What a server did, and has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatistics {
    /// Importers that are connected.
    pub importers: u64,
    /// Blocks that are registered with the fabric.
    pub registered: u64,
    /// Grants to write that are in force.
    pub grants: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes that were read by messages, in total.
    pub bytes_by_messages: u64,
    /// Bytes that importers wrote.
    pub bytes_written: u64,
    /// Sessions that were ended because the importer did not answer, or was idle.
    pub lost: u64,
}

#[derive(Debug, Default)]
struct Shared {
    stops: AtomicBool,
    importers: AtomicU64,
    registered: AtomicU64,
    grants: AtomicU64,
    requests: AtomicU64,
    bytes_by_messages: AtomicU64,
    bytes_written: AtomicU64,
    lost: AtomicU64,
}

impl Server {
    /// Starts to serve what `exporter` exports. `importer` opens it for that, and needs all kinds
    /// of memory that are served.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::NoProvider`], [`Error::Fabric`], [`Error::System`].
    pub fn start(
        exporter: &'static Exporter,
        importer: &'static Importer,
        settings: &RemoteSettings,
    ) -> Result<Self> {
        let library = fabric::library(&settings.library)?;
        let query = Query::Serve { provider: &settings.provider, interface: &settings.interface };
        let domain = Domain::open(Info::find(library, query)?)?;
        let queue = Queue::open(&domain)?;
        let addresses = Addresses::open(&domain)?;
        let endpoint = Endpoint::open(&queue, &addresses)?;
        let server = umf_os::process::random().map_err(|errno| Error::System { call: "getrandom", errno })?;
        let info = domain.info();
        let provider = info.provider().to_owned();
        let route = Route { server, format: info.format(), provider, name: endpoint.name()? };
        if !route.is_encodable() {
            let provider = route.provider;
            return Err(Error::Fabric {
                call: "fi_getname",
                reason: "its address is too long".to_owned(),
                provider,
            });
        }
        let shared = Arc::new(Shared::default());
        let mut state =
            State::new(domain, endpoint, addresses, (exporter, importer), settings, server, &shared);
        state.post_receives()?;
        let thread = background::spawn(c"umf-remote", 256 << 10, move || state.run());
        let thread = thread.map_err(|error| Error::System {
            call: "pthread_create",
            errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        })?;
        tracing::debug!(address = %route.address(), "serving to other machines");
        let generation = fork::generation();
        Ok(Self { shared, thread: Some(thread), exporter, route, queue, generation })
    }

    /// Makes a handle of this process's exporter a handle for other machines.
    ///
    /// # Errors
    /// [`Error::NotOwn`], [`Error::Forked`].
    pub fn remote_handle(&self, handle: &Handle) -> Result<RemoteHandle> {
        if self.generation != fork::generation() {
            return Err(Error::Forked);
        }
        if self.exporter.nonce() != Some(handle.nonce()) || handle.has_ticket() {
            return Err(Error::NotOwn);
        }
        Ok(RemoteHandle::new(*handle, self.route.clone()))
    }

    /// Returns the address at which it serves, and the provider.
    #[must_use]
    pub fn address(&self) -> String {
        self.route.address()
    }

    /// Returns what it did, and has now.
    #[must_use]
    pub fn statistics(&self) -> ServerStatistics {
        let shared = &self.shared;
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerStatistics {
            importers: value(&shared.importers),
            registered: value(&shared.registered),
            grants: value(&shared.grants),
            requests: value(&shared.requests),
            bytes_by_messages: value(&shared.bytes_by_messages),
            bytes_written: value(&shared.bytes_written),
            lost: value(&shared.lost),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // The parent's thread uses these.
            core::mem::forget((Arc::clone(&self.queue), Arc::clone(&self.shared)));
            core::mem::forget(self.thread.take());
            return;
        }
        self.shared.stops.store(true, Ordering::Release);
        self.queue.wake();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}
