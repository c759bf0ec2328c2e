//! Joining a domain: fetches the table from a participant, or founds the domain if there is none.
//!
//! Also the registry of the domains that this process has joined: a process has one registration
//! for an object, so a second join returns the same participant.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use umf_ipc::Allow;
use umf_ipc::fd_socket::{Deadline, Listeners, Request, Server, ServerRule};
use umf_sync::{failpoint, fork};

use crate::object::{Registrations, ServedFds};
use crate::participant::{Participant, timed_out};
use crate::request::{PROTOCOL, Response, request_fd};
use crate::socket::{ArbiterGuard, DomainName, bind_first, is_peer_alive, lock_arbiter, probe_with};
use crate::sys::CloseOnFork;
use crate::table::{LockedTable, MAX_PARTICIPANTS, Table};
use crate::{DomainSettings, Error, Result, sys};

/// The ids that a join probes before it takes the arbiter. Participants take the lowest free id, so
/// most domains have a participant among them.
const FIRST_IDS: usize = 8;

impl Participant {
    /// Joins the domain as a new participant.
    pub(crate) fn join(name: DomainName, settings: &DomainSettings) -> Result<Arc<Self>> {
        let timeout = settings.timeout;
        let deadline = Deadline::after(timeout);
        let nonce = sys::random().map_err(Error::system("getrandom"))?;
        // The first id of the search, and the number of free ids after which the search ends.
        let (mut first, mut max_dead) = (0, FIRST_IDS);
        loop {
            // Without the arbiter, since a participant may take long to answer.
            let fetched = fetch_table(&name, first, max_dead, settings, deadline)?;
            let arbiter = lock_arbiter(&name, deadline, timeout)?;
            let table = match fetched {
                // The sender is alive while the arbiter is held, so the domain has not ended.
                Some((table, sender)) if is_peer_alive(&sender) => Some(table),
                Some(_) => None,
                None => match first_alive(&name)? {
                    Some(id) => {
                        (first, max_dead) = (id, usize::from(MAX_PARTICIPANTS));
                        None
                    }
                    None => Some(Table::new(name.as_str(), name.tag(), settings.max_objects)?),
                },
            };
            if let Some(table) = table {
                let (id, listener) = enter(&name, &arbiter, &table, nonce)?;
                drop(arbiter);
                let registrations = Arc::new(Registrations::default());
                let served =
                    ServedFds { table: table.shared_file(), registrations: Arc::downgrade(&registrations) };
                let rule = ServerRule { nonce: PROTOCOL, allow: Allow::SameUser, key: None };
                let listeners = Listeners::default().with_abstract(listener);
                let server = Server::serve(listeners, rule, Arc::new(served))?;
                failpoint!("domain.served");
                tracing::debug!(domain = name.as_str(), id, "joined");
                return Ok(Arc::new(Self {
                    generation: fork::generation(),
                    name,
                    timeout,
                    id,
                    nonce,
                    _server: server,
                    table,
                    registrations: ManuallyDrop::new(registrations),
                    has_unused: AtomicBool::new(false),
                }));
            }
            drop(arbiter);
            if deadline.left().is_err() {
                return Err(timed_out(&name, Vec::new(), timeout));
            }
        }
    }
}

/// Returns the table and the connection to its sender, or `None` if no participant was found.
fn fetch_table(
    name: &DomainName,
    first: u16,
    max_dead: usize,
    settings: &DomainSettings,
    deadline: Deadline,
) -> Result<Option<(Table, OwnedFd)>> {
    let ids = (first..MAX_PARTICIPANTS).chain(0..first);
    let check = |fd| Table::open(fd, name.tag());
    match request_fd(name, ids, max_dead, Request::Ledger, deadline, check)? {
        Response::Found(table, sender) => Ok(Some((table, sender))),
        Response::NotFound { .. } => Ok(None),
        Response::NoAnswer { pids } => Err(timed_out(name, pids, settings.timeout)),
        Response::Misbehaved(what) => Err(Error::Misbehaved { domain: name.as_str().to_owned(), what }),
    }
}

/// Returns the lowest id of a living participant, by probing each id.
///
/// A list of all sockets from the kernel is not atomic and can miss one. A second table would then
/// be made for a living domain, which would split it.
fn first_alive(name: &DomainName) -> Result<Option<u16>> {
    let mut spare = None;
    for id in 0..MAX_PARTICIPANTS {
        let probed = probe_with(&mut spare, &name.participant_socket(id));
        if probed.map_err(Error::system("connect to a participant"))?.is_alive() {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Takes the lowest id whose socket name can be bound. A previous participant with this id is dead.
fn enter(
    name: &DomainName,
    arbiter: &ArbiterGuard,
    table: &Table,
    nonce: [u64; 2],
) -> Result<(u16, CloseOnFork)> {
    let bound = bind_first((0..MAX_PARTICIPANTS).map(|id| (id, name.participant_socket(id))));
    if let Some((id, listener)) = bound.map_err(Error::system("bind of a participant's name"))? {
        LockedTable::new(table, arbiter).enter(id, nonce);
        return Ok((id, listener));
    }
    Err(Error::Full {
        domain: name.as_str().to_owned(),
        what: "participants",
        limit: u32::from(MAX_PARTICIPANTS),
        remedy: "let some leave",
    })
}

/// The participant of one domain. The lock is held during a join, so that two threads do not join
/// the domain twice.
type RegistryEntry = Arc<Mutex<Weak<Participant>>>;

/// The domains that this process has joined.
struct Registry {
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
    domains: Mutex<HashMap<DomainName, RegistryEntry>>,
}

/// Returns this process's participant of the domain. If there is none, the process joins.
pub(crate) fn join(name: DomainName, settings: &DomainSettings) -> Result<Arc<Participant>> {
    let entry = {
        let mut domains = lock(&registry().domains);
        domains.retain(|_, entry| Arc::strong_count(entry) > 1 || lock(entry).strong_count() > 0);
        Arc::clone(domains.entry(name.clone()).or_default())
    };
    let mut entry = lock(&entry);
    if let Some(participant) = entry.upgrade()
        && participant.is_current()
    {
        return Ok(participant);
    }
    let participant = Participant::join(name, settings)?;
    *entry = Arc::downgrade(&participant);
    Ok(participant)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the registry of this process.
///
/// A forked child makes a new one and leaks its parent's, whose lock may be held by a thread that
/// the child does not have.
fn registry() -> &'static Registry {
    static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(core::ptr::null_mut());
    loop {
        let current = REGISTRY.load(Ordering::Acquire);
        // SAFETY: the pointer is null or a leaked box, which is valid for ever.
        if let Some(registry) = unsafe { current.as_ref() }
            && registry.generation == fork::generation()
        {
            return registry;
        }
        let new = Box::new(Registry { generation: fork::generation(), domains: Mutex::default() });
        let new = Box::into_raw(new);
        if REGISTRY.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: `new` is the box from above, which was not published.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}
