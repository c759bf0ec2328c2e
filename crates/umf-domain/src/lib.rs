//! Domains: named sets of memory regions that belong to no single process.
//!
//! A process that creates a region in a domain is its first registrant. Other processes register
//! by [`ObjectId`], once each. The region exists until its last registrant unregisters or dies.
//! The domain exists until its last participant leaves. There is no daemon, no heartbeat, and no
//! name in a file system, unless the processes find each other in a directory
//! ([`DomainSettings::directory`]). After `kill -9` of all participants, no resource is left; in a
//! directory, the next process that joins a domain removes the files.
//!
//! ```text
//! Domain::join        join         fetches the table from a participant, takes a participant id
//! Domain::create      object       makes a sealed memfd
//!                     table        takes a slot, which makes the object id
//! Domain::register    table        looks up the registrants
//!                     request      gets the fd from one of them
//!
//! name                where participants and the arbiter, the lock of the table, have their names:
//! socket                abstract sockets: a bound name proves that its participant is alive
//! place                 files in a directory: the lock of one proves it
//! ```
//!
//! `docs/domain.md` has the rules and the layout of the table.

mod domain;
mod error;
mod id;
mod join;
mod name;
mod object;
mod participant;
mod place;
mod request;
mod socket;
mod sys;
mod table;

pub use domain::{Domain, DomainSettings, ObjectInfo};
pub use error::{Error, Result};
pub use id::{ObjectId, ParseObjectIdError};
pub use object::Object;
