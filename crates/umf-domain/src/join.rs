//! Joining: the table from whoever is there, a place in it; or a new table, if nobody is.

use core::mem::ManuallyDrop;
use core::sync::atomic::AtomicBool;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use umf_ipc::fd_socket::{Deadline, Request, Server};
use umf_sync::{failpoint, fork};

use crate::arbiter::{Turn, turn};
use crate::ask::{Asked, PROTOCOL, ask};
use crate::knock::{is_still_there, knock_with};
use crate::name::Name;
use crate::participant::{Participant, timed_out};
use crate::registrations::{Registrations, Source};
use crate::sockets::bind_first;
use crate::sys::CloseOnFork;
use crate::table::{PLACES, Rules, Table};
use crate::{DomainSettings, Error, Result, sys};

/// Participants take the lowest free place, so that most domains have one among so many.
const NEAR: usize = 8;

impl Participant {
    /// Joins, as somebody new.
    pub(crate) fn join(name: Name, settings: &DomainSettings) -> Result<Arc<Self>> {
        let timeout = settings.timeout;
        let deadline = Deadline::after(timeout);
        let nonce = sys::random().map_err(Error::system("getrandom"))?;
        // The place that is asked first, and how many free places are enough to look at all of them in the turn.
        let (mut first, mut most_free) = (0, NEAR);
        loop {
            // Without the turn, since it may take long.
            let found = fetch(&name, first, most_free, settings, deadline)?;
            let turn = turn(&name, deadline, timeout)?;
            let table = match found {
                // Its sender is in the domain now, so that the table is the domain's.
                Some((table, sender)) if is_still_there(&sender) => Some(table),
                Some(_) => None,
                None => match first_occupied(&name)? {
                    Some(place) => {
                        (first, most_free) = (place, usize::from(PLACES));
                        None
                    }
                    None => Some(Table::new(name.as_str(), name.tag(), settings.max_objects)?),
                },
            };
            if let Some(table) = table {
                let (place, listener) = enter(&name, &turn, &table, nonce)?;
                drop(turn);
                let registrations = Arc::new(Registrations::default());
                let source =
                    Source { table: table.shared_file(), registrations: Arc::downgrade(&registrations) };
                let server = Server::serve(listener, PROTOCOL, Arc::new(source))?;
                failpoint!("domain.served");
                tracing::debug!(domain = name.as_str(), place, "joined");
                return Ok(Arc::new(Self {
                    generation: fork::generation(),
                    name,
                    timeout,
                    place,
                    nonce,
                    _server: server,
                    table,
                    registrations: ManuallyDrop::new(registrations),
                    leftovers: AtomicBool::new(false),
                }));
            }
            drop(turn);
            if deadline.left().is_err() {
                return Err(timed_out(&name, Vec::new(), timeout));
            }
        }
    }
}

/// Returns the table and the connection to its sender, or `None` if no participant was found.
fn fetch(
    name: &Name,
    first: u16,
    most_free: usize,
    settings: &DomainSettings,
    deadline: Deadline,
) -> Result<Option<(Table, OwnedFd)>> {
    let places = (first..PLACES).chain(0..first);
    let check = |fd| Table::open(fd, name.tag());
    match ask(name, places, most_free, Request::Ledger, deadline, check)? {
        Asked::Found(table, sender) => Ok(Some((table, sender))),
        Asked::Nowhere { .. } => Ok(None),
        Asked::Silent { pids } => Err(timed_out(name, pids, settings.timeout)),
        Asked::Misbehaved(what) => Err(Error::Misbehaved { domain: name.as_str().to_owned(), what }),
    }
}

/// Returns the first place with a living participant. Each place is looked at: no list that the kernel gives of sockets
/// is sure to have all that were there all the time, and a second table for a domain that lives would be two domains.
fn first_occupied(name: &Name) -> Result<Option<u16>> {
    let mut spare = None;
    for place in 0..PLACES {
        let knock = knock_with(&mut spare, &name.place(place));
        if knock.map_err(Error::system("connect to a participant"))?.is_alive() {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Takes the first place whose name can be bound: who was there before is dead, or it is free.
fn enter(name: &Name, turn: &Turn, table: &Table, nonce: [u64; 2]) -> Result<(u16, CloseOnFork)> {
    let bound = bind_first((0..PLACES).map(|place| (place, name.place(place))));
    if let Some((place, listener)) = bound.map_err(Error::system("bind of a participant's name"))? {
        Rules::new(table, turn).enter(place, nonce);
        return Ok((place, listener));
    }
    Err(Error::Full {
        domain: name.as_str().to_owned(),
        what: "participants",
        limit: u32::from(PLACES),
        remedy: "let some leave",
    })
}
