//! Messages and copies between two processes of one machine: one copy, or none.
//!
//! A [`Link`] joins two processes. Short messages go through rings in shared memory; long ones are fetched by their receiver from
//! where they are, by the [`Engine`] that was measured to be fastest; memory of a pool can be handed over without any copy
//! ([`Link::hand_over`]). A peer that ends, however it does, becomes an error in a bounded time.
//!
//! ```text
//! endpoint   who listens, who connects          address  where, as plain bytes
//! lane       the memory that one side writes      layout   what lies where in it
//! protocol   the lock-free parts                wait     spin, sleep, look after the peer
//! spin       for how long it pays to be awake
//! sender     send, start_send, hand_over        offer    what a slot says of a long message
//! receiver   recv, start_recv, recv_view        engines  what can carry it, and its cost
//! remote     register, put, get                 key      what a peer needs for that, as plain bytes
//! fabric     the ranks of a job, from each to each  collective  of all of them: barrier to allreduce
//! reduce     what is done with two numbers
//! ```
//!
//! `docs/link.md` has the layout, and what is promised against whom.

mod address;
mod board;
mod collective;
mod endpoint;
mod engines;
mod error;
mod fabric;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz;
mod gaps;
mod key;
mod lane;
mod layout;
mod link;
mod memory;
mod offer;
mod parts;
mod protocol;
mod queue;
mod ranges;
mod receiver;
mod reduce;
mod refusal;
mod remote;
mod sender;
mod settings;
mod shared;
mod spin;
mod statistics;
mod sys;
mod tag;
mod wait;
mod wire;

pub use address::{ADDRESS_SIZE, AddressError, LinkAddress};
pub use endpoint::{Endpoint, LinkBuilder};
pub use engines::{Cost, Engines};
pub use error::{Error, Result};
pub use fabric::Fabric;
pub use key::{KEY_SIZE, KeyError, RemoteAccess, RemoteKey};
pub use link::Link;
pub use memory::Memory;
pub use parts::{Destination, Portion, Source};
pub use receiver::{Probed, Received, Receiver, Receives, RecvRequest, View};
pub use reduce::{Element, Number, Operation, Reduction};
pub use remote::{Places, Registration, Span};
pub use sender::{Lent, SendRequest, Sender, Sends};
pub use settings::{Engine, LinkSettings};
pub use statistics::{Carried, LinkStatistics};
pub use tag::TagMatch;
