//! Joining a domain: fetches the table from a participant, or founds the domain if there is none.
//!
//! Also the registry of the domains that this process has joined: a process has one registration
//! for an object, so a second join returns the same participant.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use umf_ipc::fd_socket::{Deadline, Listeners, Request, Server};
use umf_sync::{failpoint, fork};

use crate::name::{ArbiterGuard, DomainName, lock_arbiter};
use crate::object::{Registrations, ServedFds};
use crate::participant::{Participant, not_permitted, timed_out};
use crate::request::{Response, Sender, request_fd};
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
        if let Some(place) = name.place() {
            umf_ipc::rendezvous::remove_leftovers_before_bind(&place.directory);
        }
        loop {
            // Without the arbiter, since a participant may take long to answer.
            let fetched = fetch_table(&name, first, max_dead, settings, deadline)?;
            let arbiter = lock_arbiter(&name, deadline, timeout)?;
            let table = match fetched {
                // The sender is alive while the arbiter is held, so the domain has not ended.
                Ok((table, sender)) => name.is_sender_alive(&sender)?.then_some(table),
                Err(foreign) => match name.first_alive(&foreign)? {
                    Some(id) => {
                        (first, max_dead) = (id, usize::from(MAX_PARTICIPANTS));
                        None
                    }
                    None => Some(Table::new(&name.label(), name.tag(), settings.max_objects)?),
                },
            };
            if let Some(table) = table {
                let (id, listeners) = enter(&name, &arbiter, &table, nonce)?;
                drop(arbiter);
                let registrations = Arc::new(Registrations::default());
                let served =
                    ServedFds { table: table.shared_file(), registrations: Arc::downgrade(&registrations) };
                let server = Server::serve(listeners, name.rule(), Arc::new(served))?;
                failpoint!("domain.served");
                tracing::debug!(domain = name.label(), id, "joined");
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

/// Returns the table and its sender. If no participant was found, returns the ids of processes that
/// are not participants.
fn fetch_table(
    name: &DomainName,
    first: u16,
    max_dead: usize,
    settings: &DomainSettings,
    deadline: Deadline,
) -> Result<Result<(Table, Sender), Vec<u16>>> {
    let ids = (first..MAX_PARTICIPANTS).chain(0..first);
    let check = |fd| Table::open(fd, name.tag());
    match request_fd(name, ids, max_dead, Request::Ledger, deadline, check)? {
        Response::Found(table, sender) => Ok(Ok((table, sender))),
        Response::NotFound { foreign, .. } => Ok(Err(foreign)),
        Response::NotPermitted(rule) => Err(not_permitted(name, rule)),
        Response::NoAnswer { pids } => Err(timed_out(name, pids, settings.timeout)),
        Response::Misbehaved(what) => Err(Error::Misbehaved { domain: name.as_str().to_owned(), what }),
    }
}

/// Takes the lowest id whose name can be bound. A previous participant with this id is dead.
fn enter(
    name: &DomainName,
    arbiter: &ArbiterGuard,
    table: &Table,
    nonce: [u64; 2],
) -> Result<(u16, Listeners)> {
    if let Some((id, listeners)) = name.bind()? {
        LockedTable::new(table, arbiter).enter(id, nonce);
        return Ok((id, listeners));
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
