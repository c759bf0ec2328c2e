//! [`Participant`]: this process in a domain.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use umf_ipc::fd_socket::Server;
use umf_ipc::fd_socket::{Deadline, Request};
use umf_sync::fork;

use crate::arbiter::{self, Turn, milliseconds};
use crate::ask::{Asked, ask};
use crate::knock::knock;
use crate::name::Name;
use crate::object::{Object, Registered};
use crate::region;
use crate::registrations::{Registration, Registrations};
use crate::sys::SharedMapping;
use crate::table::{Entry, Listed, NoRoom, Refused, Rules, Table};
use crate::{Error, Number, Result};

/// Between two questions to participants that are just changing what they have.
const PAUSE: Duration = Duration::from_micros(200);

/// One for each domain that this process has joined.
#[derive(Debug)]
pub(crate) struct Participant {
    /// The process that joined, as [`fork::generation`] counts.
    pub(super) generation: u32,
    pub(super) name: Name,
    pub(super) timeout: Duration,
    pub(super) place: u16,
    /// What the table has for this place as long as it is this process's.
    pub(super) nonce: [u64; 2],
    pub(super) _server: Server,
    pub(super) table: Table,
    pub(super) registrations: ManuallyDrop<Arc<Registrations>>,
    /// Registrations that could not be ended when their last handle went.
    pub(super) leftovers: AtomicBool,
}

impl Drop for Participant {
    fn drop(&mut self) {
        if self.belongs_here() || self.registrations.is_whole() {
            // SAFETY: not used again.
            unsafe { ManuallyDrop::drop(&mut self.registrations) };
        }
    }
}

impl Participant {
    pub(crate) fn belongs_here(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    fn begin(&self) -> Result<Deadline> {
        if self.belongs_here() { Ok(Deadline::after(self.timeout)) } else { Err(Error::Forked) }
    }

    /// Waits for the domain's arbiter, and makes sure that this process still is who the table takes it for.
    fn turn(&self, deadline: Deadline) -> Result<Turn> {
        let turn = arbiter::turn(&self.name, deadline, self.timeout)?;
        if !self.is_in_place() {
            return Err(Error::Expelled { domain: self.name().to_owned() });
        }
        if self.leftovers.swap(false, Ordering::AcqRel) {
            for number in self.registrations.unused() {
                self.end(&turn, number);
            }
        }
        Ok(turn)
    }

    fn rules<'t>(&'t self, turn: &Turn) -> Rules<'t> {
        Rules::new(&self.table, turn)
    }

    fn refuse(&self, number: Number, wanted: u32, refused: Refused) -> Error {
        let domain = self.name().to_owned();
        match refused {
            Refused::WrongDomain => Error::WrongDomain { number, domain },
            Refused::NoSuchNumber => Error::NoSuchNumber { number, domain },
            Refused::WrongKind(kind) => Error::WrongKind { number, kind, wanted },
            Refused::NotRegistered => Error::NotRegistered { number },
        }
    }

    fn no_room(&self, why: NoRoom) -> Error {
        match why {
            NoRoom::Full => Error::Full {
                domain: self.name().to_owned(),
                what: "objects",
                limit: self.table.capacity(),
                remedy: "unregister some, or let who joins first set DomainSettings::max_objects higher",
            },
            NoRoom::NoMemory(errno) => Error::system("fallocate of the domain's table")(errno),
        }
    }

    /// Whether others still take this process for a participant.
    pub(crate) fn is_in_place(&self) -> bool {
        self.table.is_in_place(self.place, self.nonce)
    }

    pub(crate) fn create(self: &Arc<Self>, size: usize, kind: u32) -> Result<Object> {
        let deadline = self.begin()?;
        let (fd, file, memory) = region::create(self.name(), size)?;
        let entry = Entry { kind, file };
        let mut turn = self.turn(deadline)?;
        let mut created = self.rules(&turn).create(self.place, &entry);
        if created == Err(NoRoom::Full) {
            drop(turn);
            turn = self.bury_the_dead(deadline)?;
            created = self.rules(&turn).create(self.place, &entry);
        }
        let number = created.map_err(|why| self.no_room(why))?;
        Ok(self.keep(&turn, number, entry, fd, memory))
    }

    /// Notes a registration that the table has already.
    fn keep(
        self: &Arc<Self>,
        _turn: &Turn,
        number: Number,
        entry: Entry,
        file: OwnedFd,
        memory: SharedMapping,
    ) -> Object {
        let ended = Arc::new(AtomicBool::new(false));
        let registered = Registered::new(self, number, entry.kind, memory, &ended);
        let handle = Arc::downgrade(&registered);
        self.registrations.insert(number, Registration { file: Arc::new(file), entry, handle, ended });
        Object::new(registered)
    }

    pub(crate) fn register(self: &Arc<Self>, number: Number, kind: u32) -> Result<Object> {
        let deadline = self.begin()?;
        self.register_until(deadline, None, number, kind)
    }

    /// Registers this process for the first object of a kind, and creates that object if there is none. The table is
    /// searched and changed in one turn, so that of several processes only one creates.
    pub(crate) fn find_or_create(self: &Arc<Self>, size: usize, kind: u32) -> Result<Object> {
        let deadline = self.begin()?;
        let mut region = None;
        let mut is_purged = false;
        loop {
            let turn = self.turn(deadline)?;
            if let Some(number) = self.rules(&turn).first_of_kind(kind) {
                match self.register_until(deadline, Some(turn), number, kind) {
                    // Its registrants unregistered or died after the search.
                    Err(Error::NoSuchNumber { .. }) => {}
                    found => return found,
                }
            } else if let Some((fd, file, memory)) = region.take() {
                let entry = Entry { kind, file };
                match self.rules(&turn).create(self.place, &entry) {
                    Ok(number) => return Ok(self.keep(&turn, number, entry, fd, memory)),
                    Err(NoRoom::Full) if !is_purged => {
                        drop(turn);
                        drop(self.bury_the_dead(deadline)?);
                        is_purged = true;
                        region = Some((fd, file, memory));
                    }
                    Err(why) => return Err(self.no_room(why)),
                }
            } else {
                // Other processes do not wait for these system calls.
                drop(turn);
                region = Some(region::create(self.name(), size)?);
            }
            if deadline.left().is_err() {
                return Err(self.timed_out(Vec::new()));
            }
        }
    }

    /// Registers this process. The first search of the table is made in `turn`, if the caller has one.
    fn register_until(
        self: &Arc<Self>,
        deadline: Deadline,
        mut turn: Option<Turn>,
        number: Number,
        kind: u32,
    ) -> Result<Object> {
        if number.tag() != self.table.tag() {
            return Err(self.refuse(number, kind, Refused::WrongDomain));
        }
        if let Some(again) = self.handle(number, kind)? {
            return Ok(again);
        }
        loop {
            let turn = match turn.take() {
                Some(turn) => turn,
                None => self.turn(deadline)?,
            };
            if let Some(again) = self.again(&turn, number, kind)? {
                return Ok(again);
            }
            let looked_up = self.rules(&turn).look_up(number, kind);
            drop(turn);
            let (entry, mut places) = looked_up.map_err(|refused| self.refuse(number, kind, refused))?;
            places.retain(|&place| place != self.place);
            // Not everybody asks the same one first.
            let count = places.len().max(1);
            places.rotate_left(usize::from(self.place) % count);
            let request = Request::Data { slot: u32::from(number.slot()), generation: number.into() };
            let check = |fd| region::open(fd, entry.file);
            match ask(&self.name, places, usize::MAX, request, deadline, check)? {
                Asked::Found((fd, memory), _) => {
                    let turn = self.turn(deadline)?;
                    if let Some(again) = self.again(&turn, number, kind)? {
                        return Ok(again);
                    }
                    let now = self.rules(&turn).register(self.place, number, kind);
                    if now == Ok(entry) {
                        return Ok(self.keep(&turn, number, entry, fd, memory));
                    }
                    now.map_err(|refused| self.refuse(number, kind, refused))?;
                    return Err(self.misbehaved("it changed what an object is"));
                }
                Asked::Nowhere { dead } => {
                    if dead.is_empty() {
                        // They are just unregistering.
                        std::thread::sleep(PAUSE);
                    } else {
                        drop(self.bury(&dead, deadline)?);
                    }
                    if deadline.left().is_err() {
                        return Err(self.timed_out(Vec::new()));
                    }
                }
                Asked::Silent { pids } => return Err(self.timed_out(pids)),
                Asked::Misbehaved(what) => return Err(self.misbehaved(what)),
            }
        }
    }

    fn timed_out(&self, pids: Vec<i32>) -> Error {
        timed_out(&self.name, pids, self.timeout)
    }

    fn misbehaved(&self, what: &'static str) -> Error {
        Error::Misbehaved { domain: self.name().to_owned(), what }
    }

    /// Another handle to a registration that has one.
    fn handle(&self, number: Number, kind: u32) -> Result<Option<Object>> {
        // What is upgraded is returned, not dropped: it may be the last handle by then, and wait for the turn as it goes.
        let found = self.registrations.with(number, |found| match found.entry.kind {
            of_it if of_it == kind => Ok(found.handle.upgrade()),
            of_it => Err(self.refuse(number, kind, Refused::WrongKind(of_it))),
        });
        Ok(found.transpose()?.flatten().map(Object::new))
    }

    /// As [`Participant::handle`], for one that has lost its last handle and is not ended yet, too.
    fn again(self: &Arc<Self>, _turn: &Turn, number: Number, kind: u32) -> Result<Option<Object>> {
        if let Some(object) = self.handle(number, kind)? {
            return Ok(Some(object));
        }
        let found = self
            .registrations
            .with(number, |found| (Arc::clone(&found.file), found.entry, Arc::clone(&found.ended)));
        let Some((file, entry, ended)) = found else { return Ok(None) };
        let size = usize::try_from(entry.file.size).unwrap_or(0);
        let registered = Registered::new(self, number, kind, region::map(&file, size)?, &ended);
        self.registrations.with(number, |found| found.handle = Arc::downgrade(&registered));
        Ok(Some(Object::new(registered)))
    }

    /// Ends the registration; `of`: only the one that this belongs to.
    pub(crate) fn unregister(&self, number: Number, of: Option<&Arc<AtomicBool>>) -> Result<()> {
        let deadline = self.begin()?;
        let refuse = |refused| self.refuse(number, 0, refused);
        if number.tag() != self.table.tag() {
            return Err(refuse(Refused::WrongDomain));
        }
        let turn = self.turn(deadline)?;
        let is_it = |found: &mut Registration| of.is_none_or(|ended| Arc::ptr_eq(ended, &found.ended));
        if self.registrations.with(number, is_it) != Some(true) {
            if of.is_none() {
                self.rules(&turn).check(number).map_err(refuse)?;
            }
            return Err(refuse(Refused::NotRegistered));
        }
        self.end(&turn, number);
        Ok(())
    }

    /// The last handle is gone.
    pub(crate) fn let_go(&self, number: Number) {
        match self.turn(Deadline::after(self.timeout)) {
            Ok(turn) => {
                if self.registrations.is_unused(number) {
                    self.end(&turn, number);
                }
            }
            Err(error) => {
                self.leftovers.store(true, Ordering::Release);
                tracing::warn!(%number, domain = self.name(), %error, "an object could not be unregistered yet");
            }
        }
    }

    fn end(&self, turn: &Turn, number: Number) {
        if let Err(refused) = self.rules(turn).unregister(self.place, number) {
            tracing::warn!(%number, domain = self.name(), ?refused, "the table does not have a registration");
        }
        drop(self.registrations.remove(number));
    }

    /// All objects that somebody alive is registered for.
    pub(crate) fn objects(&self) -> Result<Vec<Listed>> {
        let turn = self.bury_the_dead(self.begin()?)?;
        Ok(self.rules(&turn).objects())
    }

    /// Takes dead participants off the table, and has the turn then.
    fn bury_the_dead(&self, deadline: Deadline) -> Result<Turn> {
        let mut dead = Vec::new();
        for place in self.table.occupied() {
            if place != self.place && !self.is_alive(place)? {
                dead.push(place);
            }
        }
        self.bury(&dead, deadline)
    }

    fn bury(&self, places: &[u16], deadline: Deadline) -> Result<Turn> {
        let turn = self.turn(deadline)?;
        for &place in places {
            // Somebody may have entered meanwhile.
            if place != self.place && !self.is_alive(place)? {
                self.rules(&turn).reclaim(place);
            }
        }
        Ok(turn)
    }

    fn is_alive(&self, place: u16) -> Result<bool> {
        is_alive(&self.name, place)
    }
}

/// Whether a participant of the domain is in this place.
pub(super) fn is_alive(name: &Name, place: u16) -> Result<bool> {
    Ok(knock(&name.place(place)).map_err(Error::system("connect to a participant"))?.is_alive())
}

pub(super) fn timed_out(name: &Name, pids: Vec<i32>, timeout: Duration) -> Error {
    Error::TimedOut { domain: name.as_str().to_owned(), pids, milliseconds: milliseconds(timeout) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DomainSettings;

    fn join(name: &str) -> Arc<Participant> {
        let name = Name::new(name, crate::sys::effective_uid()).unwrap();
        Participant::join(name, &DomainSettings::default()).unwrap()
    }

    /// Two participants of one process, which [`crate::joined`] never makes.
    fn pair(name: &str) -> (Arc<Participant>, Arc<Participant>) {
        let name = format!("{name}-{}", std::process::id());
        (join(&name), join(&name))
    }

    #[test]
    fn who_lost_its_place_is_told_so_and_keeps_its_memory() {
        let (first, second) = pair("expelled");
        let object = first.create(1, 1).unwrap();
        let number = object.number();
        let turn = second.turn(Deadline::after(second.timeout)).unwrap();
        // What a newcomer does that could bind the name, because somebody closed the socket.
        second.rules(&turn).enter(first.place, [0, 0]);
        drop(turn);
        let expelled = Error::Expelled { domain: first.name().to_owned() };
        assert_eq!(first.create(1, 1).unwrap_err(), expelled);
        assert_eq!(first.objects().unwrap_err(), expelled);
        assert_eq!(first.unregister(number, None).unwrap_err(), expelled);
        assert!(second.objects().unwrap().is_empty());
        assert!(matches!(second.register(number, 1), Err(Error::NoSuchNumber { .. })));
        assert_eq!(object.view::<u8>().unwrap().len(), object.len());
    }

    #[test]
    fn join_finds_participant_behind_free_places() {
        let name = format!("join-behind-{}", std::process::id());
        let mut all: Vec<_> = (0..20).map(|_| join(&name)).collect();
        let last = all.pop().unwrap();
        drop(all);
        let object = last.create(1, 1).unwrap();
        let newcomer = join(&name);
        assert_eq!((last.place, newcomer.place), (19, 0));
        assert_eq!(newcomer.register(object.number(), 1).unwrap().number(), object.number());
    }

    #[test]
    fn find_or_create_returns_first_object_of_kind() {
        let (first, second) = pair("find");
        let _other = first.create(1, 1).unwrap();
        let found = first.find_or_create(5000, 2).unwrap();
        let _later = first.create(1, 2).unwrap();
        let number = found.number();
        let size = found.len();
        for participant in [&first, &second, &second] {
            let again = participant.find_or_create(1, 2).unwrap();
            assert_eq!((again.number(), again.kind(), again.len()), (number, 2, size));
        }
        let listed = first.objects().unwrap();
        assert_eq!(listed.iter().map(|object| object.registrants).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(second.find_or_create(1, 3).unwrap().number().slot(), 3);
        assert!(matches!(second.find_or_create(0, 4), Err(Error::BadSize { size: 0, .. })));
    }

    /// Enters a participant that no process stands for, as a killed one leaves it, with an object.
    fn create_as_dead(participant: &Participant, place: u16, kind: u32) -> Number {
        let turn = participant.turn(Deadline::after(participant.timeout)).unwrap();
        let rules = participant.rules(&turn);
        rules.enter(place, [1, 2]);
        let file = crate::sys::File { device: 1, inode: 1, size: 4096 };
        rules.create(place, &Entry { kind, file }).unwrap()
    }

    #[test]
    fn find_or_create_skips_objects_of_dead_registrants() {
        let (first, second) = pair("find-dead");
        let dead = create_as_dead(&first, 9, 1);
        let found = first.find_or_create(1, 1).unwrap();
        assert_ne!(found.number(), dead);
        let later = create_as_dead(&first, 10, 1);
        assert_eq!(second.find_or_create(1, 1).unwrap().number(), found.number());
        drop(found);
        assert_ne!(second.find_or_create(1, 1).unwrap().number(), later);
    }

    #[test]
    fn find_or_create_in_full_domain_takes_slot_of_dead() {
        let name = format!("find-full-{}", std::process::id());
        let settings = DomainSettings { max_objects: 1, ..DomainSettings::default() };
        let name = Name::new(&name, crate::sys::effective_uid()).unwrap();
        let participant = Participant::join(name, &settings).unwrap();
        create_as_dead(&participant, 9, 1);
        let found = participant.find_or_create(1, 2).unwrap();
        assert!(matches!(participant.find_or_create(1, 3), Err(Error::Full { limit: 1, .. })));
        assert_eq!(participant.find_or_create(1, 2).unwrap().number(), found.number());
    }

    #[test]
    fn participants_that_find_or_create_at_once_get_one_object() {
        let (first, second) = pair("find-race");
        let third = join(first.name());
        let all = [first, second, third];
        let (meet, numbers) = (std::sync::Barrier::new(all.len()), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for participant in &all {
                scope.spawn(|| {
                    for round in 0..200 {
                        meet.wait();
                        let object = participant.find_or_create(1, 1).unwrap();
                        numbers.lock().unwrap().push((round, object.number()));
                        // In odd rounds the first ones leave while others come.
                        if round % 2 == 0 {
                            meet.wait();
                        }
                    }
                });
            }
        });
        let mut numbers = numbers.into_inner().unwrap();
        numbers.retain(|(round, _)| round % 2 == 0);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100, "one object a round");
    }

    /// A bit that nobody stands for, as a participant could write it.
    #[test]
    fn a_registrant_that_does_not_have_it_is_waited_for_no_longer_than_the_timeout() {
        let (first, second) = pair("bit");
        let object = first.create(1, 1).unwrap();
        let number = object.number();
        let turn = first.turn(Deadline::after(first.timeout)).unwrap();
        first.rules(&turn).register(second.place, number, 1).unwrap();
        drop(turn);
        drop(object);
        let began = std::time::Instant::now();
        let third = join(first.name());
        assert!(matches!(third.register(number, 1), Err(Error::TimedOut { .. })));
        assert!(began.elapsed() < 3 * third.timeout);
        // The table says that it is registered itself, which it knows better.
        let turn = third.turn(Deadline::after(third.timeout)).unwrap();
        third.rules(&turn).unregister(second.place, number).unwrap();
        let entry = Entry { kind: 1, file: crate::sys::File { device: 1, inode: 1, size: 4096 } };
        let number = third.rules(&turn).create(third.place, &entry).unwrap();
        drop(turn);
        assert!(matches!(third.register(number, 1), Err(Error::TimedOut { .. })));
    }

    /// What the table says of an object is compared with what comes.
    #[test]
    fn another_file_than_the_tables_is_refused() {
        let (first, second) = pair("other-file");
        let object = first.create(1, 1).unwrap();
        let number = object.number();
        let (file, _, _) = region::create("other", 1).unwrap();
        first.registrations.with(number, |found| found.file = Arc::new(file));
        assert!(matches!(second.register(number, 1), Err(Error::Misbehaved { .. })));
    }
}
