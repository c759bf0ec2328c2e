//! Messages between processes of one machine, with one copy or none.
//!
//! ```
//! fn main() -> umf::Result<()> {
//!     let endpoint = umf::link::bind()?;
//!     let address = endpoint.address(); // 64 plain bytes; as text: address.to_string()
//!
//!     // In any other process of this user (here: in another thread):
//!     let peer = std::thread::spawn(move || -> umf::Result<()> {
//!         let pool = umf::Pool::shared()?;
//!         let block = pool.allocate(1 << 20)?;
//!         block.write(0, b"a megabyte")?;
//!         let mut link = umf::link::connect(&address, None)?;
//!         link.send(1, b"hello")?;
//!         let memory = block.link_memory()?;
//!         link.hand_over(2, &memory)?.wait(None)?; // without a copy; waits until the peer is done
//!         Ok(())
//!     });
//!
//!     let mut link = endpoint.accept(None)?;
//!     let mut text = [0; 5];
//!     link.recv(1, &mut text)?;
//!     let view = link.recv_view(2)?;
//!     let mut first = [0; 10];
//!     view.read(0, &mut first)?;
//!     assert_eq!((&text, &first), (b"hello", b"a megabyte"));
//!     drop(view);
//!     peer.join().expect("it does not panic")
//! }
//! ```
//!
//! [`builder`] starts with the settings of this process (`[link]` in `umf.toml`, `UMF_LINK_*`; the
//! directory and the permitted processes of `[ipc]`) and its importer. Change it as needed, and
//! bind, connect or join with it. `docs/link.md` has the guarantees.

use std::time::Duration;

#[doc(inline)]
pub use umf_link::{
    ADDRESS_SIZE, AddressError, Carried, Cost, Destination, Endpoint, Engine, Engines, Error, Inbox,
    KEY_SIZE, KeyError, Link, LinkAddress, LinkBuilder, LinkSettings, LinkStatistics, Loan, Memory,
    MemoryPart, Probed, Received, RecvRequest, Registration, RemoteAccess, RemoteKey, SendRequest, Source,
    Span, Spans, TagMatch, View,
};

#[cfg(feature = "comm")]
#[doc(inline)]
pub use umf_link::{Communicator, Element, Number, Operation, Reduction};

use crate::{Result, importer};

/// Returns the settings of this process for its links.
///
/// # Errors
/// As [`importer()`].
pub fn link_settings() -> Result<LinkSettings> {
    #[cfg(feature = "config")]
    let mut settings = crate::settings()?.link.clone();
    #[cfg(not(feature = "config"))]
    let mut settings = LinkSettings::default();
    (settings.directory, settings.allow) = crate::process::rendezvous()?;
    Ok(settings)
}

/// Returns a builder with the settings and the importer of this process.
///
/// # Errors
/// As [`importer()`].
pub fn builder() -> Result<LinkBuilder> {
    Ok(LinkBuilder::new().settings(link_settings()?).importer(importer()?))
}

/// Creates an endpoint with a new address; see [`LinkBuilder::bind`].
///
/// # Errors
/// As [`LinkBuilder::bind`] and [`importer()`].
pub fn bind() -> Result<Endpoint> {
    Ok(builder()?.bind()?)
}

/// Creates an endpoint with a name; see [`LinkBuilder::named`].
///
/// # Errors
/// As [`LinkBuilder::named`] and [`importer()`].
pub fn named(name: &str) -> Result<Endpoint> {
    Ok(builder()?.named(name)?)
}

/// Connects to an endpoint; see [`LinkBuilder::connect`].
///
/// # Errors
/// As [`LinkBuilder::connect`] and [`importer()`].
pub fn connect(address: &LinkAddress, timeout: Option<Duration>) -> Result<Link> {
    Ok(builder()?.connect(address, timeout)?)
}

/// Joins a job as one of its `size` ranks; see [`LinkBuilder::join`].
///
/// # Errors
/// As [`LinkBuilder::join`] and [`importer()`].
#[cfg(feature = "comm")]
pub fn join(job: &str, rank: usize, size: usize) -> Result<Communicator> {
    Ok(builder()?.join(job, rank, size)?)
}
