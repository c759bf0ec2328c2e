//! [`Participant`]: this process as a member of a domain, with the operations of [`crate::Domain`].

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use umf_ipc::Allow;
use umf_ipc::fd_socket::{Deadline, Request, Server};
use umf_sync::fork;

use crate::name::{ArbiterGuard, DomainName, lock_arbiter, milliseconds};
use crate::object::{Object, ObjectInner, Registration, Registrations, region};
use crate::request::{Response, request_fd};
use crate::sys::SharedMapping;
use crate::table::{CreateError, Entry, ListedObject, LockedTable, LookupError, Table};
use crate::{Error, ObjectId, Result};

/// The time between two attempts to get an object whose registrants are unregistering.
const RETRY_DELAY: Duration = Duration::from_micros(200);

/// The membership of this process in one domain.
#[derive(Debug)]
pub(crate) struct Participant {
    /// The process that joined, as [`fork::generation`] counts.
    pub(super) generation: u32,
    pub(super) name: DomainName,
    pub(super) timeout: Duration,
    /// The participant id: the index in the table, and in the name of the socket.
    pub(super) id: u16,
    /// The nonce of `id` in the table, as long as the id belongs to this process.
    pub(super) nonce: [u64; 2],
    pub(super) _server: Server,
    pub(super) table: Table,
    pub(super) registrations: ManuallyDrop<Arc<Registrations>>,
    /// Whether the end of a registration failed when its last handle was dropped.
    pub(super) has_unused: AtomicBool,
}

impl Drop for Participant {
    fn drop(&mut self) {
        if self.is_own_process() || self.registrations.is_consistent() {
            // SAFETY: `self` is being dropped, so the field is not used again.
            unsafe { ManuallyDrop::drop(&mut self.registrations) };
        }
    }
}

impl Participant {
    /// Returns whether this process joined, and not its parent.
    pub(crate) fn is_own_process(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the deadline of a call that begins now. Fails in a forked child.
    fn deadline(&self) -> Result<Deadline> {
        if self.is_own_process() { Ok(Deadline::after(self.timeout)) } else { Err(Error::Forked) }
    }

    /// Locks the domain's arbiter, and checks that this process is still a participant. Ends
    /// registrations without handles.
    fn lock(&self, deadline: Deadline) -> Result<ArbiterGuard> {
        let arbiter = lock_arbiter(&self.name, deadline, self.timeout)?;
        if !self.is_current() {
            return Err(Error::Expelled { domain: self.name().to_owned() });
        }
        if self.has_unused.swap(false, Ordering::AcqRel) {
            for id in self.registrations.unused() {
                self.end_registration(&arbiter, id);
            }
        }
        Ok(arbiter)
    }

    fn table<'t>(&'t self, arbiter: &ArbiterGuard) -> LockedTable<'t> {
        LockedTable::new(&self.table, arbiter)
    }

    fn lookup_error(&self, id: ObjectId, wanted: u32, error: LookupError) -> Error {
        let domain = self.name().to_owned();
        match error {
            LookupError::WrongDomain => Error::WrongDomain { id, domain },
            LookupError::NoSuchObject => Error::NoSuchObject { id, domain },
            LookupError::WrongKind(kind) => Error::WrongKind { id, kind, wanted },
            LookupError::NotRegistered => Error::NotRegistered { id },
        }
    }

    fn create_error(&self, error: CreateError) -> Error {
        match error {
            CreateError::Full => Error::Full {
                domain: self.name().to_owned(),
                what: "objects",
                limit: self.table.capacity(),
                remedy: "unregister some, or raise DomainSettings::max_objects in the process that joins first",
            },
            CreateError::NoMemory(errno) => Error::system("fallocate of the domain's table")(errno),
        }
    }

    /// Returns whether the table still has this process as a participant.
    pub(crate) fn is_current(&self) -> bool {
        self.table.is_participant(self.id, self.nonce)
    }

    pub(crate) fn create(self: &Arc<Self>, size: usize, kind: u32) -> Result<Object> {
        let deadline = self.deadline()?;
        let (fd, file, memory) = region::create(&self.name.label(), size)?;
        let entry = Entry { kind, file };
        let mut arbiter = self.lock(deadline)?;
        let mut created = self.table(&arbiter).create(self.id, &entry);
        if created == Err(CreateError::Full) {
            drop(arbiter);
            arbiter = self.reclaim_dead(deadline)?;
            created = self.table(&arbiter).create(self.id, &entry);
        }
        let id = created.map_err(|error| self.create_error(error))?;
        Ok(self.add_registration(&arbiter, id, entry, fd, memory))
    }

    /// Adds the handle of a registration that the table already has.
    fn add_registration(
        self: &Arc<Self>,
        _arbiter: &ArbiterGuard,
        id: ObjectId,
        entry: Entry,
        file: OwnedFd,
        memory: SharedMapping,
    ) -> Object {
        let has_ended = Arc::new(AtomicBool::new(false));
        let inner = ObjectInner::new(self, id, entry.kind, memory, &has_ended);
        let handle = Arc::downgrade(&inner);
        self.registrations.insert(id, Registration { file: Arc::new(file), entry, handle, has_ended });
        Object::new(inner)
    }

    pub(crate) fn register(self: &Arc<Self>, id: ObjectId, kind: u32) -> Result<Object> {
        let deadline = self.deadline()?;
        self.register_until(deadline, None, id, kind)
    }

    /// Registers this process for the first object of a kind. If there is none, it creates one. The
    /// arbiter is held over search and creation, so that only one of several processes creates.
    pub(crate) fn find_or_create(self: &Arc<Self>, size: usize, kind: u32) -> Result<Object> {
        let deadline = self.deadline()?;
        let mut region = None;
        let mut has_reclaimed = false;
        loop {
            let arbiter = self.lock(deadline)?;
            if let Some(id) = self.table(&arbiter).first_of_kind(kind) {
                match self.register_until(deadline, Some(arbiter), id, kind) {
                    // The registrants unregistered or died after the search.
                    Err(Error::NoSuchObject { .. }) => {}
                    found => return found,
                }
            } else if let Some((fd, file, memory)) = region.take() {
                let entry = Entry { kind, file };
                match self.table(&arbiter).create(self.id, &entry) {
                    Ok(id) => return Ok(self.add_registration(&arbiter, id, entry, fd, memory)),
                    Err(CreateError::Full) if !has_reclaimed => {
                        drop(arbiter);
                        drop(self.reclaim_dead(deadline)?);
                        has_reclaimed = true;
                        region = Some((fd, file, memory));
                    }
                    Err(error) => return Err(self.create_error(error)),
                }
            } else {
                // Created without the arbiter, so that other processes do not wait for these system
                // calls.
                drop(arbiter);
                region = Some(region::create(&self.name.label(), size)?);
            }
            if deadline.left().is_err() {
                return Err(self.timed_out(Vec::new()));
            }
        }
    }

    /// Registers this process. If the caller passes the arbiter, the first lookup is made under it.
    fn register_until(
        self: &Arc<Self>,
        deadline: Deadline,
        mut arbiter: Option<ArbiterGuard>,
        id: ObjectId,
        kind: u32,
    ) -> Result<Object> {
        if id.tag() != self.table.tag() {
            return Err(self.lookup_error(id, kind, LookupError::WrongDomain));
        }
        if let Some(object) = self.existing_handle(id, kind)? {
            return Ok(object);
        }
        loop {
            let arbiter = match arbiter.take() {
                Some(arbiter) => arbiter,
                None => self.lock(deadline)?,
            };
            if let Some(object) = self.new_handle(&arbiter, id, kind)? {
                return Ok(object);
            }
            let found = self.table(&arbiter).look_up(id, kind);
            drop(arbiter);
            let (entry, mut registrants) = found.map_err(|error| self.lookup_error(id, kind, error))?;
            registrants.retain(|&registrant| registrant != self.id);
            // Spreads the requests of several processes over the registrants.
            let count = registrants.len().max(1);
            registrants.rotate_left(usize::from(self.id) % count);
            let request = Request::Data { slot: u32::from(id.slot()), generation: id.into() };
            let check = |fd| region::open(fd, entry.file);
            match request_fd(&self.name, registrants, usize::MAX, request, deadline, check)? {
                Response::Found((fd, memory), _) => {
                    let arbiter = self.lock(deadline)?;
                    if let Some(object) = self.new_handle(&arbiter, id, kind)? {
                        return Ok(object);
                    }
                    let registered = self.table(&arbiter).register(self.id, id, kind);
                    if registered == Ok(entry) {
                        return Ok(self.add_registration(&arbiter, id, entry, fd, memory));
                    }
                    registered.map_err(|error| self.lookup_error(id, kind, error))?;
                    return Err(self.misbehaved("it changed the table's description of an object"));
                }
                Response::NotFound { dead, .. } => {
                    if dead.is_empty() {
                        // The registrants are unregistering.
                        std::thread::sleep(RETRY_DELAY);
                    } else {
                        drop(self.reclaim(&dead, deadline)?);
                    }
                    if deadline.left().is_err() {
                        return Err(self.timed_out(Vec::new()));
                    }
                }
                Response::NotPermitted(rule) => return Err(not_permitted(&self.name, rule)),
                Response::NoAnswer { pids } => return Err(self.timed_out(pids)),
                Response::Misbehaved(what) => return Err(self.misbehaved(what)),
            }
        }
    }

    fn timed_out(&self, pids: Vec<i32>) -> Error {
        timed_out(&self.name, pids, self.timeout)
    }

    fn misbehaved(&self, what: &'static str) -> Error {
        Error::Misbehaved { domain: self.name().to_owned(), what }
    }

    /// Returns another handle to a registration that has a handle.
    fn existing_handle(&self, id: ObjectId, kind: u32) -> Result<Option<Object>> {
        // The upgraded handle is returned and not dropped here: dropping the last one locks the
        // arbiter.
        let found = self.registrations.with(id, |found| match found.entry.kind {
            found_kind if found_kind == kind => Ok(found.handle.upgrade()),
            found_kind => Err(self.lookup_error(id, kind, LookupError::WrongKind(found_kind))),
        });
        Ok(found.transpose()?.flatten().map(Object::new))
    }

    /// Returns a handle to a registration, also if its last handle was dropped and it has not
    /// ended.
    fn new_handle(
        self: &Arc<Self>,
        _arbiter: &ArbiterGuard,
        id: ObjectId,
        kind: u32,
    ) -> Result<Option<Object>> {
        if let Some(object) = self.existing_handle(id, kind)? {
            return Ok(Some(object));
        }
        let found = self
            .registrations
            .with(id, |found| (Arc::clone(&found.file), found.entry, Arc::clone(&found.has_ended)));
        let Some((file, entry, has_ended)) = found else { return Ok(None) };
        let size = usize::try_from(entry.file.size).unwrap_or(0);
        let inner = ObjectInner::new(self, id, kind, region::map(&file, size)?, &has_ended);
        self.registrations.with(id, |found| found.handle = Arc::downgrade(&inner));
        Ok(Some(Object::new(inner)))
    }

    /// Ends the registration. If a handle passes its `has_ended` flag, only the registration of
    /// that handle is ended, and not a later one of the same object.
    pub(crate) fn unregister(&self, id: ObjectId, handle: Option<&Arc<AtomicBool>>) -> Result<()> {
        let deadline = self.deadline()?;
        let fail = |error| self.lookup_error(id, 0, error);
        if id.tag() != self.table.tag() {
            return Err(fail(LookupError::WrongDomain));
        }
        let arbiter = self.lock(deadline)?;
        let is_same =
            |found: &mut Registration| handle.is_none_or(|flag| Arc::ptr_eq(flag, &found.has_ended));
        if self.registrations.with(id, is_same) != Some(true) {
            if handle.is_none() {
                self.table(&arbiter).check(id).map_err(fail)?;
            }
            return Err(fail(LookupError::NotRegistered));
        }
        self.end_registration(&arbiter, id);
        Ok(())
    }

    /// Ends a registration whose last handle was dropped.
    pub(crate) fn release(&self, id: ObjectId) {
        match self.lock(Deadline::after(self.timeout)) {
            Ok(arbiter) => {
                if self.registrations.is_unused(id) {
                    self.end_registration(&arbiter, id);
                }
            }
            Err(error) => {
                self.has_unused.store(true, Ordering::Release);
                let domain = self.name.label();
                // The text of the error has the name.
                let error = self.name.is_public().then(|| error.to_string());
                tracing::warn!(%id, domain, error, "object not unregistered; the next call on the domain retries");
            }
        }
    }

    fn end_registration(&self, arbiter: &ArbiterGuard, id: ObjectId) {
        if let Err(error) = self.table(arbiter).unregister(self.id, id) {
            tracing::warn!(%id, domain = self.name.label(), ?error, "the table has no entry for a registration");
        }
        drop(self.registrations.remove(id));
    }

    /// Returns all objects with a living registrant.
    pub(crate) fn objects(&self) -> Result<Vec<ListedObject>> {
        let arbiter = self.reclaim_dead(self.deadline()?)?;
        Ok(self.table(&arbiter).objects())
    }

    /// Removes dead participants from the table. Returns with the arbiter held.
    fn reclaim_dead(&self, deadline: Deadline) -> Result<ArbiterGuard> {
        let mut dead = Vec::new();
        for id in self.table.active() {
            if id != self.id && !self.is_alive(id)? {
                dead.push(id);
            }
        }
        self.reclaim(&dead, deadline)
    }

    fn reclaim(&self, ids: &[u16], deadline: Deadline) -> Result<ArbiterGuard> {
        let arbiter = self.lock(deadline)?;
        for &id in ids {
            // A new participant may have taken the id after it was found dead.
            if id != self.id && !self.is_alive(id)? {
                self.table(&arbiter).reclaim(id);
            }
        }
        Ok(arbiter)
    }

    fn is_alive(&self, id: u16) -> Result<bool> {
        self.name.is_alive(id)
    }
}

/// Returns the error for a participant of a domain in a directory that does not permit this
/// process.
pub(super) fn not_permitted(name: &DomainName, rule: Allow) -> Error {
    match name.place() {
        Some(place) => place.error(name.as_str(), rule),
        None => Error::Misbehaved { domain: name.as_str().to_owned(), what: "it refused its own user" },
    }
}

pub(super) fn timed_out(name: &DomainName, pids: Vec<i32>, timeout: Duration) -> Error {
    Error::TimedOut { domain: name.as_str().to_owned(), pids, milliseconds: milliseconds(timeout) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DomainSettings;

    fn join(name: &str) -> Arc<Participant> {
        let name = DomainName::new(name, &DomainSettings::default()).unwrap();
        Participant::join(name, &DomainSettings::default()).unwrap()
    }

    /// Two participants of one process, which [`crate::join::join`] prevents.
    fn pair(name: &str) -> (Arc<Participant>, Arc<Participant>) {
        let name = format!("{name}-{}", std::process::id());
        (join(&name), join(&name))
    }

    #[test]
    fn expelled_participant_gets_error_and_keeps_memory() {
        let (first, second) = pair("expelled");
        let object = first.create(1, 1).unwrap();
        let id = object.id();
        let arbiter = second.lock(Deadline::after(second.timeout)).unwrap();
        // As a new participant does after the socket was closed, which frees the name.
        second.table(&arbiter).enter(first.id, [0, 0]);
        drop(arbiter);
        let expelled = Error::Expelled { domain: first.name().to_owned() };
        assert_eq!(first.create(1, 1).unwrap_err(), expelled);
        assert_eq!(first.objects().unwrap_err(), expelled);
        assert_eq!(first.unregister(id, None).unwrap_err(), expelled);
        assert!(second.objects().unwrap().is_empty());
        assert!(matches!(second.register(id, 1), Err(Error::NoSuchObject { .. })));
        assert_eq!(object.view::<u8>().unwrap().len(), object.len());
    }

    #[test]
    fn join_finds_participant_behind_free_ids() {
        let name = format!("join-behind-{}", std::process::id());
        let mut all: Vec<_> = (0..20).map(|_| join(&name)).collect();
        let last = all.pop().unwrap();
        drop(all);
        let object = last.create(1, 1).unwrap();
        let newcomer = join(&name);
        assert_eq!((last.id, newcomer.id), (19, 0));
        assert_eq!(newcomer.register(object.id(), 1).unwrap().id(), object.id());
    }

    #[test]
    fn find_or_create_returns_first_object_of_kind() {
        let (first, second) = pair("find");
        let _other = first.create(1, 1).unwrap();
        let found = first.find_or_create(5000, 2).unwrap();
        let _later = first.create(1, 2).unwrap();
        let id = found.id();
        let size = found.len();
        for participant in [&first, &second, &second] {
            let again = participant.find_or_create(1, 2).unwrap();
            assert_eq!((again.id(), again.kind(), again.len()), (id, 2, size));
        }
        let listed = first.objects().unwrap();
        assert_eq!(listed.iter().map(|object| object.registrants).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(second.find_or_create(1, 3).unwrap().id().slot(), 3);
        assert!(matches!(second.find_or_create(0, 4), Err(Error::BadSize { size: 0, .. })));
    }

    /// Enters a participant without a process, with an object, as a killed process leaves them.
    fn create_as_dead(participant: &Participant, id: u16, kind: u32) -> ObjectId {
        let arbiter = participant.lock(Deadline::after(participant.timeout)).unwrap();
        let table = participant.table(&arbiter);
        table.enter(id, [1, 2]);
        let file = crate::sys::SealedFile { device: 1, inode: 1, size: 4096 };
        table.create(id, &Entry { kind, file }).unwrap()
    }

    #[test]
    fn find_or_create_skips_objects_of_dead_registrants() {
        let (first, second) = pair("find-dead");
        let dead = create_as_dead(&first, 9, 1);
        let found = first.find_or_create(1, 1).unwrap();
        assert_ne!(found.id(), dead);
        let later = create_as_dead(&first, 10, 1);
        assert_eq!(second.find_or_create(1, 1).unwrap().id(), found.id());
        drop(found);
        assert_ne!(second.find_or_create(1, 1).unwrap().id(), later);
    }

    #[test]
    fn find_or_create_in_full_domain_takes_slot_of_dead() {
        let name = format!("find-full-{}", std::process::id());
        let settings = DomainSettings { max_objects: 1, ..DomainSettings::default() };
        let name = DomainName::new(&name, &settings).unwrap();
        let participant = Participant::join(name, &settings).unwrap();
        create_as_dead(&participant, 9, 1);
        let found = participant.find_or_create(1, 2).unwrap();
        assert!(matches!(participant.find_or_create(1, 3), Err(Error::Full { limit: 1, .. })));
        assert_eq!(participant.find_or_create(1, 2).unwrap().id(), found.id());
    }

    #[test]
    fn concurrent_find_or_create_returns_one_object() {
        let (first, second) = pair("find-race");
        let third = join(first.name());
        let all = [first, second, third];
        let (meet, ids) = (std::sync::Barrier::new(all.len()), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for participant in &all {
                scope.spawn(|| {
                    for round in 0..200 {
                        meet.wait();
                        let object = participant.find_or_create(1, 1).unwrap();
                        ids.lock().unwrap().push((round, object.id()));
                        // In odd rounds the object is dropped while other threads register.
                        if round % 2 == 0 {
                            meet.wait();
                        }
                    }
                });
            }
        });
        let mut ids = ids.into_inner().unwrap();
        ids.retain(|(round, _)| round % 2 == 0);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 100, "one object a round");
    }

    /// A registrant bit without a registration, as a hostile participant can write it.
    #[test]
    fn registrant_bit_without_registration_times_out() {
        let (first, second) = pair("bit");
        let object = first.create(1, 1).unwrap();
        let id = object.id();
        let arbiter = first.lock(Deadline::after(first.timeout)).unwrap();
        first.table(&arbiter).register(second.id, id, 1).unwrap();
        drop(arbiter);
        drop(object);
        let began = std::time::Instant::now();
        let third = join(first.name());
        assert!(matches!(third.register(id, 1), Err(Error::TimedOut { .. })));
        assert!(began.elapsed() < 3 * third.timeout);
        // The same bit of the calling participant itself.
        let arbiter = third.lock(Deadline::after(third.timeout)).unwrap();
        third.table(&arbiter).unregister(second.id, id).unwrap();
        let entry = Entry { kind: 1, file: crate::sys::SealedFile { device: 1, inode: 1, size: 4096 } };
        let id = third.table(&arbiter).create(third.id, &entry).unwrap();
        drop(arbiter);
        assert!(matches!(third.register(id, 1), Err(Error::TimedOut { .. })));
    }

    /// The received file is compared with the table's entry.
    #[test]
    fn file_that_differs_from_table_is_refused() {
        let (first, second) = pair("other-file");
        let object = first.create(1, 1).unwrap();
        let id = object.id();
        let (file, _, _) = region::create("other", 1).unwrap();
        first.registrations.with(id, |found| found.file = Arc::new(file));
        assert!(matches!(second.register(id, 1), Err(Error::Misbehaved { .. })));
    }
}
