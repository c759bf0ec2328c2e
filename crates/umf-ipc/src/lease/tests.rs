mod rows;

use super::layout::{Entry, MARKS, Shape, State};
use super::owner::Owner;
use super::*;
use crate::identity::{self, Nonce, ProcessIdentity};
use crate::sys::{self, SharedMapping};
use crate::{Error, Result};
use proptest::prelude::*;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use umf_core::thread;

const SLOTS: u32 = 1024;

fn door() -> Door {
    let door = Door::new(SLOTS, Nonce::from_bytes(*b"a door's ledger.")).unwrap();
    door.reserve(0, SLOTS).unwrap();
    door
}

/// One with this many rows.
fn small_door(rows: u32) -> Door {
    let limit = Shape { slots: SLOTS, rows }.size();
    let door = Door::within(SLOTS, Nonce::from_bytes(*b"a door's ledger."), limit).unwrap();
    assert_eq!(door.rows(), rows);
    door.reserve(0, SLOTS).unwrap();
    door
}

fn fd(door: &Door) -> OwnedFd {
    door.shared_fd().as_fd().try_clone_to_owned().unwrap()
}

fn producer(door: &Door) -> Producer {
    Producer {
        pid: std::process::id(),
        nonce: Nonce::from_bytes(*b"a door's ledger."),
        slots: SLOTS,
        rows: door.rows(),
        same_pid_namespace: true,
    }
}

fn try_table(door: &Door) -> Result<Box<LeaseTable>> {
    LeaseTable::open(fd(door), producer(door), ProcessIdentity::current(), Arc::default()).map(Box::new)
}

/// A table of this process. In a box: leases know where it is.
fn table(door: &Door) -> Box<LeaseTable> {
    try_table(door).unwrap()
}

/// The table of another process, which lives until it is killed.
struct Importer {
    process: Child,
    table: Box<LeaseTable>,
}

impl Importer {
    fn new(door: &Door) -> Self {
        // It waits for an end of input that does not come.
        let process = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut table = table(door);
        table.pose_as(owner(process.id()));
        Self { process, table }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn owner(pid: u32) -> Owner {
    let pidfd = sys::pidfd_open(pid).unwrap();
    Owner {
        state: State::used(pid),
        start_time: identity::start_time(pid).unwrap(),
        pidfs_inode: identity::pidfs_inode(&pidfd).unwrap_or(0),
    }
}

/// A lease on its way to another thread, as a mapping takes it.
#[derive(Clone, Copy)]
struct Sent(Lease);

// SAFETY: leases may be given back in any thread.
unsafe impl Send for Sent {}

impl Sent {
    fn give_back(self) {
        // SAFETY: taken once and given back once, while the table is there.
        unsafe { self.0.give_back(thread::current()) };
    }
}

fn close(lease: Lease) {
    Sent(lease).give_back();
}

fn close_elsewhere(lease: Lease) {
    let sent = Sent(lease);
    std::thread::scope(|scope| scope.spawn(move || sent.give_back()).join().unwrap());
}

fn open(table: &LeaseTable, slot: u32) -> Lease {
    table.take(slot).unwrap().0
}

#[test]
fn what_is_open_is_leased_until_it_is_closed() {
    let door = door();
    let (one, other) = (table(&door), Importer::new(&door));
    assert!((0..SLOTS).all(|slot| !door.is_leased(slot)));
    for slot in [0, 7, SLOTS - 1] {
        let first = open(&one, slot);
        let again = open(&one, slot);
        let others = open(&other.table, slot);
        assert_eq!((first.producer_and_slot(), again.word()), ((std::process::id(), slot), first.word()));
        for lease in [first, others, again] {
            assert!(door.is_leased(slot) && !door.is_leased(slot ^ 1));
            close(lease);
        }
        assert!(!door.is_leased(slot));
    }
    assert_eq!(door.importers(), 2);
    drop((one, other));
    assert_eq!(door.importers(), 0);
}

#[test]
fn what_one_thread_opens_another_may_close() {
    let door = door();
    let table = table(&door);
    let (here, there) = (open(&table, 5), open(&table, 5));
    let others = std::thread::scope(|scope| scope.spawn(|| Sent(open(&table, 5))).join().unwrap());
    close_elsewhere(there);
    assert!(door.is_leased(5));
    others.give_back();
    assert!(door.is_leased(5));
    close(here);
    assert!(!door.is_leased(5));
    // What rows say by themselves is not zero now; only their sum is.
    for _ in 0..3 {
        close_elsewhere(open(&table, 5));
        assert!(!door.is_leased(5));
        let lease = open(&table, 5);
        assert!(door.is_leased(5));
        close(lease);
    }
}

#[test]
fn rows_of_ended_processes_are_used_again_and_say_nothing() {
    let door = small_door(4);
    let living = table(&door);
    let lease = open(&living, 1);
    for round in 0..6 {
        let mut importer = Importer::new(&door);
        let number = open(&importer.table, 1);
        open(&importer.table, 2);
        assert!(door.is_leased(2), "round {round}");
        importer.kill();
        // Every other time nobody looks before the next one comes.
        assert!(round % 2 == 1 || !door.is_leased(2));
        assert_eq!(door.importers(), if round % 2 == 1 { 2 } else { 1 });
        // What it would do when it ended in order, too late: its rows are others' by now.
        let next = Importer::new(&door);
        let lease = open(&next.table, 3);
        drop(importer);
        assert!(door.is_leased(3), "round {round}: a row was emptied that was another's");
        close(lease);
        let _ = number;
    }
    assert!(door.is_leased(1) && !door.is_leased(2) && !door.is_leased(3));
    close(lease);
    assert!(!door.is_leased(1));
}

#[test]
fn with_all_rows_used_threads_share_one() {
    let door = small_door(8);
    let table = table(&door);
    let lease = open(&table, 9);
    let other = Importer::new(&door);
    let others = open(&other.table, 9);
    // The rows of threads (half of all) are used; the others are for processes.
    let _more: Vec<_> = (0..4).map(|_| try_table(&door).unwrap()).collect();
    assert!(matches!(try_table(&door), Err(Error::LimitReached { limit: 8, .. })));
    // Threads without a row count together.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let (lease, is_own) = table.take(9).unwrap();
                    assert!(!is_own && door.is_leased(9));
                    close(lease);
                }
            });
        }
    });
    // What this thread has a row for, others give back without one.
    close_elsewhere(lease);
    assert!(door.is_leased(9));
    close(others);
    assert!(!door.is_leased(9));
    // Rows that come free are found again, after a while.
    drop(other);
    let found = std::thread::scope(|scope| {
        let run =
            || (0..5000).any(|_| table.take(8).map(|(lease, is_own)| (close(lease), is_own)).unwrap().1);
        scope.spawn(run).join().unwrap()
    });
    assert!(found);
    assert!(!door.is_leased(8));
}

#[test]
fn a_mark_says_where_to_look() {
    let door = door();
    let front = front(&door);
    let shape = Shape { slots: SLOTS, rows: door.rows() };
    let mark =
        |slot: u32| front.words(shape.marks() as usize + slot as usize * 8, 1)[0].load(Ordering::SeqCst);
    let table = table(&door);
    assert_eq!(mark(4), 0);
    let lease = open(&table, 4);
    assert_eq!(mark(4).count_ones(), 1);
    close(lease);
    assert_ne!(mark(4), 0);
    // Asked once, what is closed costs one load from then on.
    assert!(!door.is_leased(4));
    assert_eq!((mark(4), mark(5)), (0, 0));
    let lease = open(&table, 4);
    assert!(mark(4) != 0 && door.is_leased(4) && mark(4) != 0);
    close(lease);
    // More rows than marks have bits.
    let tables: Vec<_> = (0..MARKS).map(|_| self::table(&door)).collect();
    let leases: Vec<_> = tables.iter().map(|table| open(table, 6)).collect();
    for lease in leases {
        assert!(door.is_leased(6));
        close(lease);
    }
    assert!(!door.is_leased(6));
}

#[test]
fn an_owner_is_a_process_and_not_its_number() {
    let own = ProcessIdentity::current();
    let whole = owner(own.pid);
    let lives = |owner: Owner| owner.find().is_some();
    assert!(lives(whole));
    // A thread has a number of the same kind. (ENOENT since Linux 6.16, EINVAL before.)
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: asks for a number.
        tell.send(unsafe { libc::gettid() }).unwrap();
        let _ = ended.recv();
    });
    let number = u32::try_from(told.recv().unwrap()).unwrap();
    assert!(!lives(Owner { state: State::used(number), ..whole }));
    assert!(!lives(Owner { state: State::claimed(number), ..whole }));
    drop(end);
    thread.join().unwrap();
    // Other processes that have the pid by now.
    assert!(!lives(Owner { start_time: whole.start_time + 1, pidfs_inode: 0, ..whole }));
    assert!(lives(Owner { pidfs_inode: 0, ..whole }), "one that could not get a pidfd of itself");
    if whole.pidfs_inode != 0 {
        assert!(!lives(Owner { pidfs_inode: whole.pidfs_inode + 1, ..whole }));
        assert!(lives(Owner { start_time: 0, ..whole }), "one without /proc");
        assert!(!lives(Owner { start_time: 0, pidfs_inode: 0, ..whole }), "opens nothing");
    }
    for state in
        [State::used(0), State::claimed(0), State::used(u32::MAX), State::announced(own.pid), State::FREE]
    {
        assert!(!lives(Owner { state, ..whole }), "{state:?}");
    }
    // One that claims a row has not written yet who it is.
    assert!(lives(Owner { state: State::claimed(own.pid), start_time: 0, pidfs_inode: 0 }));
}

#[test]
fn who_cannot_be_found_announces_itself() {
    let door = door();
    let elsewhere = || {
        let producer = Producer { same_pid_namespace: false, ..producer(&door) };
        Box::new(LeaseTable::open(fd(&door), producer, ProcessIdentity::current(), Arc::default()).unwrap())
    };
    let (table, silent) = (elsewhere(), elsewhere());
    let (row, number) = table.announcement().unwrap().unwrap();
    let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pidfd = sys::pidfd_open(process.id()).unwrap();
    assert!(!door.announce(row, number ^ 1, None));
    assert!(!door.announce(row + 1, number, None) && !door.announce(u32::MAX, number, None));
    assert!(door.announce(row, number, Some(pidfd)));
    let lease = open(&table, 3);
    open(&table, 4);
    assert!(door.is_leased(3) && door.is_leased(4));
    close(lease);
    assert!(!door.is_leased(3) && door.is_leased(4));
    // Nobody opens anything before it has announced itself: such words are not believed.
    open(&silent, 5);
    assert!(!door.is_leased(5) && door.is_leased(4));
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(!door.is_leased(4));
    assert_eq!(door.importers(), 0);
}

fn front(door: &Door) -> SharedMapping {
    let size = Shape { slots: SLOTS, rows: door.rows() }.row(8);
    SharedMapping::new(door.shared_fd().as_fd(), usize::try_from(size).unwrap(), true).unwrap()
}

#[test]
fn limits_on_files_make_doors_small() {
    for slots in [1, SLOTS, crate::ledger::MAX_SLOTS] {
        let mut before = 0;
        for bits in 12..48 {
            let limit = 1 << bits;
            let Some(shape) = Shape::within(slots, limit) else {
                assert_eq!(before, 0);
                continue;
            };
            assert!(shape.size() <= limit && (4..=4096).contains(&shape.rows) && shape.rows >= before);
            assert!(shape.front() > shape.marks() && shape.marks() > shape.entries());
            assert!(shape.entries() + u64::from(shape.rows) * size_of::<Entry>() as u64 <= shape.marks());
            assert_eq!(shape.row(shape.rows), shape.size());
            before = shape.rows;
        }
        assert_eq!(before, 4096);
    }
    let nonce = Nonce::from_bytes([1; 16]);
    assert!(matches!(Door::within(SLOTS, nonce, 65536), Err(Error::System { .. })));
}

#[test]
fn what_is_no_door_is_refused() {
    let door = door();
    let open = |fd: OwnedFd, producer: Producer| {
        LeaseTable::open(fd, producer, ProcessIdentity::current(), Arc::default())
    };
    let is_refused = |fd: OwnedFd, producer: Producer| {
        assert!(matches!(open(fd, producer), Err(Error::Misbehaved { .. })));
    };
    let good = producer(&door);
    is_refused(fd(&door), Producer { nonce: Nonce::from_bytes([2; 16]), ..good });
    is_refused(fd(&door), Producer { slots: SLOTS * 64, ..good });
    for rows in [0, 1, good.rows / 2] {
        is_refused(fd(&door), Producer { rows, ..good });
    }
    is_refused(sys::memfd("no-door", Shape { slots: SLOTS, rows: good.rows }.size()).unwrap(), good);
    is_refused(std::fs::File::open("/dev/null").unwrap().into(), good);
    assert!(open(fd(&door), good).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever others write into a door: no fault, no end that does not come; and it serves again when it is emptied.
    #[test]
    fn wild_words_are_survived(
        words in prop::collection::vec((0_usize..1 << 14, any::<u64>(), 0_u32..7), 1..400),
    ) {
        let door = small_door(256);
        let shape = Shape { slots: SLOTS, rows: 256 };
        let front = front(&door);
        let table = table(&door);
        let kept = open(&table, 1);
        for (place, wild, kind) in words {
            let offset = match kind {
                0 => 32 + place % 2 * 8,
                1 | 2 => shape.entries() as usize + place % 256 * 64 + place / 256 % 3 * 8,
                3 => shape.marks() as usize + place % 64 * 8,
                _ => shape.row((place % 8) as u32) as usize + place / 8 % 64 * 8,
            };
            let value = match wild % 4 {
                0 => wild >> 2,
                1 => (wild >> 2) % 3,
                2 => ((wild >> 2) % 6) << 32 | u64::from(std::process::id()),
                _ => u64::MAX,
            };
            front.words(offset, 1)[0].store(value, Ordering::SeqCst);
            let slot = (place % 64) as u32;
            door.is_leased(slot);
            door.announce(place as u32 % 300, wild as u32, None);
            if kind == 6 && let Ok((lease, _)) = table.take(slot) {
                close(lease);
            }
            if kind == 5 && let Ok(another) = try_table(&door) {
                close(open(&another, slot));
            }
            door.importers();
        }
        close(kept);
        drop(table);
        sys::punch(door.shared_fd().as_fd(), shape.entries(), shape.size() - shape.entries()).unwrap();
        let table = self::table(&door);
        let lease = open(&table, 2);
        prop_assert!(door.is_leased(2) && !door.is_leased(1));
        close(lease);
        prop_assert!(!door.is_leased(2));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open { who: usize, slot: u32, elsewhere: bool },
    Close { which: usize, elsewhere: bool },
    Kill { who: usize },
    Leave { who: usize },
    Look { slot: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let (who, slot, flag) = (0_usize..3, 0_u32..4, any::<bool>());
    prop_oneof![
        6 => (who.clone(), slot.clone(), flag).prop_map(|(who, slot, elsewhere)| Step::Open { who, slot, elsewhere }),
        5 => (any::<usize>(), flag).prop_map(|(which, elsewhere)| Step::Close { which, elsewhere }),
        1 => who.clone().prop_map(|who| Step::Kill { who }),
        1 => who.prop_map(|who| Step::Leave { who }),
        6 => slot.prop_map(|slot| Step::Look { slot }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Importers come, open, close in whatever thread, leave and are killed: what is leased is what the plain list says.
    #[test]
    fn leases_are_what_a_list_of_them_says(steps in prop::collection::vec(step(), 1..60)) {
        let door = small_door(32);
        let mut importers: Vec<_> = (0..3).map(|_| Importer::new(&door)).collect();
        // By importer, slot and lease.
        let mut model: Vec<(usize, u32, Lease)> = Vec::new();
        for step in steps {
            match step {
                Step::Open { who, slot, elsewhere } => {
                    let table = &importers[who].table;
                    let lease = if elsewhere {
                        std::thread::scope(|scope| scope.spawn(|| Sent(open(table, slot))).join().unwrap()).0
                    } else {
                        open(table, slot)
                    };
                    model.push((who, slot, lease));
                }
                Step::Close { which, elsewhere } if !model.is_empty() => {
                    let (_, _, lease) = model.swap_remove(which % model.len());
                    if elsewhere { close_elsewhere(lease) } else { close(lease) }
                }
                Step::Close { .. } => {}
                Step::Kill { who } => {
                    let mut killed = std::mem::replace(&mut importers[who], Importer::new(&door));
                    killed.kill();
                    model.retain(|(of, _, _)| *of != who);
                    // It does not close anything.
                    std::mem::forget(killed);
                }
                Step::Leave { who } if model.iter().all(|(of, _, _)| *of != who) => {
                    importers[who] = Importer::new(&door);
                }
                Step::Leave { .. } => {}
                Step::Look { slot } => {
                    let expected = model.iter().any(|(_, of, _)| *of == slot);
                    prop_assert_eq!(door.is_leased(slot), expected);
                }
            }
        }
        for slot in 0..4 {
            prop_assert_eq!(door.is_leased(slot), model.iter().any(|(_, of, _)| *of == slot));
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        model.iter().for_each(|(_, slot, _)| *counts.entry(*slot).or_default() += 1);
        for (_, slot, lease) in model {
            close(lease);
            *counts.get_mut(&slot).unwrap() -= 1;
            prop_assert_eq!(door.is_leased(slot), counts[&slot] > 0);
        }
    }
}
