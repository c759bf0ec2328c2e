//! Domains: named sets of regions that belong to no single process.
//!
//! A process creates a region in a domain and is registered by that. Others register by [`Number`], once each. The
//! region lives until the last registered process unregisters or dies, whoever created it; the domain lives until the
//! last process leaves it. No daemon, no heartbeat, no name in any file system: what is left after `kill -9` of all of
//! them is nothing.
//!
//! ```text
//! Domain::join        join: the table from whoever is there, a place in it
//! Domain::create      region: a sealed memfd        table: a slot, a number
//! Domain::register    table: who has it             ask: the fd from any of them
//!
//! arbiter             who has bound this name may change the table
//! sockets, knock      a bound name is a living participant
//! ```
//!
//! `docs/domain.md` has the rules and the layout of the table.

mod arbiter;
mod ask;
mod diag;
mod domain;
mod error;
mod join;
mod joined;
mod knock;
mod name;
mod number;
mod object;
mod participant;
mod region;
mod registrations;
mod sockets;
mod sys;
mod table;

pub use domain::{Domain, DomainSettings, ObjectInfo};
pub use error::{Error, Result};
pub use number::{Number, ParseNumberError};
pub use object::Object;
