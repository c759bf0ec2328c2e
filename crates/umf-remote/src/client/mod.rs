//! The importer's side: [`RemoteImporter`] opens remote handles, and has one connection for each
//! server.

mod connection;
mod reads;
mod session;

pub(crate) use connection::{Connection, Landed, ReadState};

use std::sync::Arc;

use hashbrown::HashMap;
use umf_ipc::{Handle, Importer};
use umf_sync::{Lock, fork};

use crate::route::Route;
use crate::{Remote, RemoteHandle, RemoteSettings, Result};

/// The number of connections above which those that are not used are closed.
const IDLE_CONNECTIONS: usize = 64;

/// Opens remote handles.
///
/// A handle of this machine is mapped. For others, there is one connection for each server, with an
/// endpoint, a completion queue and buffers of its own, which is made by the first read. All
/// methods may be called from several threads at once.
#[derive(Debug)]
pub struct RemoteImporter {
    importer: &'static Importer,
    settings: RemoteSettings,
    connections: Lock<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    by_route: HashMap<Route, Arc<Connection>>,
    /// [`fork::generation`] of the process that made them.
    generation: u32,
}

impl Connections {
    /// Removes the connections that no [`Remote`] uses. Drop them without the lock: closing takes a
    /// moment.
    fn take_idle(&mut self) -> Vec<Arc<Connection>> {
        let is_idle = |_: &Route, connection: &mut Arc<Connection>| Arc::strong_count(connection) == 1;
        self.by_route.extract_if(is_idle).map(|(_, connection)| connection).collect()
    }
}

impl RemoteImporter {
    /// Creates an importer. `importer` opens handles of this machine.
    #[must_use]
    pub fn new(importer: &'static Importer, settings: RemoteSettings) -> Self {
        Self { importer, settings, connections: Lock::new(Connections::default()) }
    }

    /// Opens a remote handle. Makes no connection: the first read does.
    ///
    /// # Errors
    /// [`crate::Error::Ipc`] if the memory is of this machine and cannot be opened.
    pub fn open(&self, handle: &RemoteHandle) -> Result<Remote> {
        if self.settings.local && handle.handle().is_of_this_boot() {
            return Remote::local(self.importer, handle.handle());
        }
        let connection = self.connection(handle.route());
        Ok(Remote::over_fabric(connection, *handle.handle()))
    }

    /// As [`Self::open`], from the bytes of a [`RemoteHandle`], or of a [`Handle`] of this machine.
    ///
    /// # Errors
    /// [`crate::Error::Route`], and those of [`Self::open`].
    pub fn open_bytes(&self, bytes: &[u8]) -> Result<Remote> {
        match RemoteHandle::from_bytes(bytes) {
            Ok(handle) => self.open(&handle),
            Err(crate::RouteError::NoRoute) => {
                let handle = Handle::from_bytes(bytes).map_err(crate::RouteError::from)?;
                Remote::local(self.importer, &handle)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Closes connections that no [`Remote`] uses. Returns their number.
    pub fn evict_idle(&self) -> usize {
        let closed = self.connections.lock().take_idle();
        closed.len()
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.lock().by_route.len()
    }

    fn connection(&self, route: &Route) -> Arc<Connection> {
        let mut closed = Vec::new();
        let mut connections = self.connections.lock();
        if connections.generation != fork::generation() {
            // The parent goes on with them.
            core::mem::forget(core::mem::take(&mut connections.by_route));
            connections.generation = fork::generation();
        }
        if connections.by_route.len() >= IDLE_CONNECTIONS && !connections.by_route.contains_key(route) {
            closed = connections.take_idle();
        }
        let make = || Arc::new(Connection::new(route.clone(), self.settings.clone()));
        let connection = Arc::clone(connections.by_route.entry(route.clone()).or_insert_with(make));
        drop(connections);
        drop(closed);
        connection
    }
}
