//! Memory of processes on other machines, over libfabric.
//!
//! ```
//! fn main() -> umf::Result<()> {
//! #   use umf::remote::Error::{NoLibrary, NoProvider};
//! #   if let Err(umf::Error::Remote(error @ (NoLibrary(_) | NoProvider { .. }))) = umf::remote::serve() {
//! #       println!("umf-skip: {error}");
//! #       return Ok(());
//! #   }
//!     let serving = umf::remote::serve()?; // as long as the process should be reachable
//!     let pool = umf::Pool::shared()?;
//!     let block = pool.allocate(1 << 20)?;
//!     block.write(0, b"hello")?;
//!     let handle = block.remote_handle()?.to_bytes(); // plain bytes, at most 768
//!
//!     // In a process of any machine that reaches this one (here: in the same process):
//!     let remote = umf::remote::open(&handle)?;
//!     assert_eq!(&*remote.read(0, 5)?, b"hello");
//!     let grant = remote.grant(std::time::Duration::from_secs(5))?;
//!     grant.write(0, b"HELLO")?;
//!     drop(grant);
//!     drop(block);
//!     assert!(!remote.is_current()?); // a read fails: it is never stale
//!     drop(serving);
//!     Ok(())
//! }
//! ```
//!
//! Both sides use the section `[remote]` of `umf.toml` and the variables `UMF_REMOTE_*`
//! ([`RemoteSettings`]). [`open`] maps memory of its own machine, as [`crate::open`] does. If
//! `remote.local` is "false", it reads that memory over the fabric too, so that a test needs one
//! machine only.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use umf_ipc::Handle;
use umf_remote::Server;
use umf_sync::{Lock, fork};

#[doc(inline)]
pub use umf_remote::{
    Data, Error, Grant, ListedGrant, PendingRead, Remote, RemoteHandle, RemoteImporter, RemoteSettings,
    RouteError, ServerStatistics, grants_of,
};

use crate::Result;

/// The server of this process.
#[derive(Debug)]
struct Current {
    /// Dangling if no [`Serving`] exists.
    server: Weak<Server>,
    /// [`fork::generation`] of the process that started it.
    generation: u32,
}

static CURRENT: Lock<Current> = Lock::new(Current { server: Weak::new(), generation: 0 });

/// The importer of remote handles, which is set once and never freed.
static IMPORTER: AtomicPtr<RemoteImporter> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps the server of this process running. The server stops when the last of these is dropped.
#[derive(Clone, Debug)]
#[must_use = "the server stops when this is dropped"]
pub struct Serving {
    server: Arc<Server>,
}

impl Serving {
    /// Returns the address at which the server listens, with the provider of libfabric.
    #[must_use]
    pub fn address(&self) -> String {
        self.server.address()
    }

    /// Returns what the server has done, and has now.
    #[must_use]
    pub fn statistics(&self) -> ServerStatistics {
        self.server.statistics()
    }
}

/// Returns the settings of this process for its server and for its importer of remote handles.
///
/// # Errors
/// As [`crate::importer()`].
pub fn remote_settings() -> Result<RemoteSettings> {
    #[cfg(feature = "config")]
    let settings = crate::settings()?.remote.clone();
    #[cfg(not(feature = "config"))]
    let settings = RemoteSettings::default();
    Ok(settings)
}

/// Makes the exported memory of this process readable from other machines, as long as the result or
/// a clone of it exists. All calls share one server and its thread.
///
/// A forked child has no server, whatever guards it has inherited; the server of its parent goes
/// on. A call of `serve` in the child starts one.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::NoProvider`], [`Error::Fabric`] and [`Error::System`]; as
/// [`crate::exporter()`].
pub fn serve() -> Result<Serving> {
    let settings = remote_settings()?;
    let (exporter, importer) = (crate::exporter()?, crate::importer()?);
    // The lock is held during the start, which takes milliseconds, so that there is one server.
    let mut current = CURRENT.lock();
    if let Some(server) = current.running() {
        return Ok(Serving { server });
    }
    let server = Arc::new(Server::start(exporter, importer, &settings)?);
    // A `Weak` of the parent is dropped here, which frees memory of this process.
    *current = Current { server: Arc::downgrade(&server), generation: fork::generation() };
    Ok(Serving { server })
}

impl Current {
    /// Returns the server, if this process has one.
    fn running(&self) -> Option<Arc<Server>> {
        (self.generation == fork::generation()).then(|| self.server.upgrade()).flatten()
    }
}

fn running() -> Option<Arc<Server>> {
    CURRENT.lock().running()
}

/// Makes a handle of this process's exporter a handle for other machines.
///
/// # Errors
/// [`Error::NotServing`] if no [`Serving`] exists; [`Error::NotOwn`] if the memory is of another
/// process, or if the handle was sent ([`crate::Block::send_handle`]).
pub fn remote_handle(handle: &Handle) -> Result<RemoteHandle> {
    Ok(running().ok_or(Error::NotServing)?.remote_handle(handle)?)
}

/// Returns what the server of this process has done, and has now; `None` if there is none.
#[must_use]
pub fn statistics() -> Option<ServerStatistics> {
    running().map(|server| server.statistics())
}

/// Returns the importer of this process for remote handles, which [`open`] uses.
///
/// # Errors
/// As [`crate::importer()`].
pub fn importer() -> Result<&'static RemoteImporter> {
    let known = IMPORTER.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or of a box that is never freed.
    if let Some(importer) = unsafe { known.as_ref() } {
        return Ok(importer);
    }
    let new = Box::into_raw(Box::new(RemoteImporter::new(crate::importer()?, remote_settings()?)));
    match IMPORTER.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: the box is never freed.
        Ok(_) => Ok(unsafe { &*new }),
        Err(other) => {
            // SAFETY: the box was not published. The other pointer is not null, and its box is
            // never freed.
            unsafe {
                drop(Box::from_raw(new));
                Ok(&*other)
            }
        }
    }
}

/// Opens the bytes of a [`RemoteHandle`], or of a [`Handle`] of this machine.
///
/// Memory of this machine is mapped, unless `remote.local` is "false". For other memory no
/// connection is made before the first read.
///
/// # Errors
/// [`Error::Route`] if the bytes are no handle; [`Error::Ipc`] if the memory is of this machine and
/// cannot be opened; as [`crate::importer()`].
pub fn open(bytes: &[u8]) -> Result<Remote> {
    Ok(importer()?.open_bytes(bytes)?)
}

/// Returns the version of libfabric, and its providers that offer what umf needs, the best first.
/// The setting `remote.provider` chooses one.
///
/// # Errors
/// [`Error::NoLibrary`]; as [`crate::importer()`].
pub fn providers() -> Result<(String, Vec<String>)> {
    Ok(umf_remote::providers(&remote_settings()?)?)
}
