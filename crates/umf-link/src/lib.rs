//! Messages and one-sided copies between processes of one machine, with one copy or none.
//!
//! A [`Link`] connects two processes, a [`Communicator`] the ranks of a job. Short messages go
//! through rings in shared memory. The receiver fetches long messages from the sender's memory, by
//! the [`Engine`] that was measured to be fastest. Blocks of a pool are handed over without a copy
//! ([`Link::hand_over`]). If a peer ends in any way, calls fail within a bounded time.
//!
//! ```text
//! link       inbox  peer  queue  wait  calls; progress on all lanes; tag queue; spin, yield, sleep
//! endpoint   address contact        listening, connecting, the handshake; abstract or in a directory
//! layout     shared_files channel   the shared memory: lanes, catalogs, bells
//! protocol   ring                   lock-free protocols; records in a lane
//! send       outgoing offer handles sending, offers and backlog, handing over; handle table
//! receive    both  bounce  view     fetching: mapped, by the kernel, by both sides, in chunks
//! registry   key  spans             registered ranges and keys
//! remote     requests               put and get
//! buffer     memory kernel_copy     memory of sources and destinations; copies by the kernel
//! engines    settings               engines, their costs and counters; settings
//! comm       reduce                 ranks and collectives; reductions
//! mesh                              one process and any number of others, without blocking calls
//! ```
//!
//! The feature `comm`, on by default, adds ranks and collectives. `docs/link.md` has the layouts,
//! the guarantees and the threat model.

#![cfg_attr(not(feature = "comm"), allow(dead_code, reason = "some items are used by ranks only"))]

mod address;
mod atomics;
mod both;
mod bounce;
mod buffer;
mod channel;
#[cfg(feature = "comm")]
mod comm;
mod contact;
mod endpoint;
mod engines;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz;
mod handles;
mod inbox;
mod kernel_copy;
mod key;
mod layout;
mod link;
mod memory;
pub mod mesh;
mod offer;
mod outgoing;
mod peer;
mod protocol;
mod queue;
mod receive;
mod reduce;
mod registry;
mod remote;
mod requests;
mod ring;
mod send;
mod settings;
mod shared_files;
mod spans;
mod sys;
mod view;
mod wait;

pub use address::{ADDRESS_SIZE, AddressError, LinkAddress};
pub use atomics::{Atomic, AtomicOperation, AtomicType};
pub use buffer::{Destination, Source};
#[cfg(feature = "comm")]
pub use comm::Communicator;
pub use endpoint::{Endpoint, LinkBuilder};
pub use engines::{Carried, Cost, Engines, LinkStatistics};
pub use error::{Error, Result};
pub use inbox::Inbox;
pub use key::{KEY_SIZE, KeyError, RemoteAccess, RemoteKey};
pub use link::Link;
pub use memory::{Memory, MemoryPart};
pub use queue::TagMatch;
pub use receive::{Probed, Received, RecvRequest};
pub use reduce::{Element, Number, Operation, Reduction};
pub use registry::Registration;
pub use send::{Loan, SendRequest};
pub use settings::{Engine, LinkSettings};
pub use spans::{Span, Spans};
pub use view::View;
