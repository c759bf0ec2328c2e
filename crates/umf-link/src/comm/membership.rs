//! [`Membership`]: where the ranks of a job find each other.
//!
//! All ranks register for one object of the job's domain. It lives as long as one of them does, and
//! has a slot for each rank, written by the process that is the rank. A rank is alive as long as a
//! process listens at the abstract socket that its address names.
//!
//! | offset | bytes | field |
//! |---:|---:|---|
//! | 0 | 4 | changes: advances each time that a rank publishes or leaves |
//! | 4 | 4 | size of the job; 0 until the first rank stores it |
//! | 4096 | 192 each | slots |
//!
//! | offset in the slot | bytes | field |
//! |---:|---:|---|
//! | 0 | 8 | claim: bits 0..2 state, 2.. incarnation |
//! | 8 | 17 x 8 | pid and address, 4 bytes a word; the upper halves have the incarnation |
//!
//! A publisher claims the slot under a new incarnation, writes the words, and changes the state. A
//! publisher that finds the previous one gone, or stalled, claims the slot from it. The stalled one
//! may go on at any time: it cannot replace a word that has a newer incarnation, and finds out that
//! its claim is lost. A reader takes words of one incarnation only.
//!
//! Processes of the same user can write anything there. Each word is read once and checked; every
//! loop ends.

use core::array::from_fn;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umf_domain::{Domain, DomainSettings, Object};
use umf_sync::{failpoint, fork};

use crate::address::check_name;
use crate::{Error, Result};

/// The most ranks of a job: as many as a domain has processes.
const MAX_RANKS: usize = 1024;
/// Longest name of a job.
const MAX_NAME: usize = 32;
/// How long joining may wait for processes of the domain, which are slow on a busy machine.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Objects of the domain. There is one, and another one while dead ranks are not noticed yet.
const MAX_OBJECTS: u32 = 8;
const KIND: u32 = u32::from_le_bytes(*b"RNK1");
const HEADER_SIZE: usize = 4096;
const SLOT_SIZE: usize = 192;
/// That of each job, since memory that is not touched costs nothing.
const OBJECT_SIZE: usize = HEADER_SIZE + MAX_RANKS * SLOT_SIZE;

/// Words of the header.
const CHANGES: usize = 0;
const SIZE: usize = 1;

/// Words of a slot after the claim: the pid, and the address.
const WORDS: usize = 17;

/// How often a slot is looked at that changes meanwhile.
const MAX_ATTEMPTS: usize = 16;
/// How long a slot may stay half written until its publisher counts as stalled.
const STALL_TIMEOUT: Duration = Duration::from_millis(20);
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Where the ranks of a job find each other: a shared object of a domain with a slot for each rank.
///
/// Dropping it says that the rank left, if this process published it.
#[derive(Debug)]
pub(crate) struct Membership {
    job: String,
    rank: usize,
    size: usize,
    is_gone: fn(&[u8; 64]) -> bool,
    object: Object,
    /// What this process published; 0 if nothing.
    published: AtomicU64,
    /// The process that joined, as [`fork::generation`] counts.
    process: u32,
}

/// A process that is or was a rank: what its slot says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// Where it listens.
    pub address: [u8; 64],
    /// Its pid in its own pid namespace: for error texts.
    pub pid: i32,
    /// Another process of the same rank has another one.
    pub incarnation: u64,
    /// Whether it left the job (its `Membership` was dropped).
    pub has_left: bool,
}

/// Of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Empty,
    Publishing,
    Here,
    Left,
}

/// The first word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SlotClaim(u64);

impl SlotClaim {
    const STATE: u64 = 3;
    const SHIFT: u32 = 2;

    const fn state(self) -> SlotState {
        match self.0 & Self::STATE {
            0 => SlotState::Empty,
            1 => SlotState::Publishing,
            2 => SlotState::Here,
            _ => SlotState::Left,
        }
    }

    const fn with(self, state: SlotState) -> Self {
        Self(self.0 & !Self::STATE | state as u64)
    }

    const fn incarnation(self) -> u64 {
        self.0 >> Self::SHIFT
    }

    /// Returns the claim of the next publisher.
    fn next(self) -> Self {
        Self(next_incarnation(self.incarnation()) << Self::SHIFT).with(SlotState::Publishing)
    }
}

/// Never 0, which is that of a slot without a process.
fn next_incarnation(incarnation: u64) -> u64 {
    (incarnation.wrapping_add(1) & u64::MAX >> SlotClaim::SHIFT).max(1)
}

struct RankSlot<'m> {
    claim: &'m AtomicU64,
    words: [&'m AtomicU64; WORDS],
}

impl RankSlot<'_> {
    fn claim(&self) -> SlotClaim {
        SlotClaim(self.claim.load(Ordering::Acquire))
    }

    fn replace(&self, claim: SlotClaim, by: SlotClaim) -> bool {
        self.claim.compare_exchange(claim.0, by.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns pid and address, unless some of the words are of another incarnation.
    fn read(&self, incarnation: u64) -> Option<(i32, [u8; 64])> {
        let mut values = [0; WORDS];
        for (value, word) in values.iter_mut().zip(self.words) {
            let word = word.load(Ordering::Acquire);
            if (word >> 32) as u32 != incarnation as u32 {
                return None;
            }
            *value = word as u32;
        }
        let address = from_fn(|at| values[1 + at / 4].to_le_bytes()[at % 4]);
        Some((values[0].cast_signed(), address))
    }

    /// Writes pid and address; `false` if the slot is claimed by another publisher.
    fn write(&self, claim: SlotClaim, pid: u32, address: &[u8; 64]) -> bool {
        let value = |part: usize| match part.checked_sub(1) {
            None => pid,
            Some(part) => u32::from_le_bytes(from_fn(|at| address[part * 4 + at])),
        };
        let tag = u64::from(claim.incarnation() as u32) << 32;
        self.words.iter().enumerate().all(|(part, word)| {
            let value = tag | u64::from(value(part));
            // Only a stalled publisher changes it meanwhile, once, or a process that scribbles.
            (0..MAX_ATTEMPTS).any(|_| {
                let current = word.load(Ordering::Acquire);
                // After the load: where another publisher wrote the word, its claim is seen.
                self.claim() == claim
                    && word.compare_exchange(current, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        })
    }

    /// Waits while the slot has this claim, until its publisher counts as stalled.
    fn wait(&self, claim: SlotClaim) {
        let began = Instant::now();
        while self.claim() == claim && began.elapsed() < STALL_TIMEOUT {
            std::thread::sleep(RETRY_DELAY);
        }
    }
}

impl Membership {
    /// Joins the domain of the job and checks its size. Publishes nothing yet.
    ///
    /// `is_gone` says whether no process listens at an address any more.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::BadRank`], [`Error::SizeMismatch`], [`Error::Membership`].
    pub(crate) fn join(job: &str, rank: usize, size: usize, is_gone: fn(&[u8; 64]) -> bool) -> Result<Self> {
        check_name(job, MAX_NAME)?;
        if rank >= size || size > MAX_RANKS {
            return Err(Error::BadRank { rank, size });
        }
        let failed = |error| Error::Membership { job: job.to_owned(), error };
        let mut settings = DomainSettings::default();
        (settings.timeout, settings.max_objects) = (JOIN_TIMEOUT, MAX_OBJECTS);
        let domain = Domain::join(&format!("umf-link/{job}"), settings).map_err(failed)?;
        let object = domain.find_or_create(OBJECT_SIZE, KIND).map_err(failed)?;
        let membership = Self {
            job: job.to_owned(),
            rank,
            size,
            is_gone,
            object,
            published: AtomicU64::new(0),
            process: fork::generation(),
        };
        let (Some(stored), Some(_)) = (membership.header(SIZE), membership.slot(size - 1)) else {
            let what = "the object on which the ranks meet is too small";
            return Err(failed(umf_domain::Error::Misbehaved { domain: domain.name().to_owned(), what }));
        };
        let theirs = stored.compare_exchange(0, size as u32, Ordering::Relaxed, Ordering::Relaxed);
        match theirs.map_or_else(|theirs| theirs as usize, |_| size) {
            same if same == size => Ok(membership),
            theirs => Err(Error::SizeMismatch { theirs, mine: size }),
        }
    }

    /// Publishes this rank's address: other ranks find it from now on. This process has to listen
    /// there.
    ///
    /// # Errors
    /// [`Error::RankTaken`] if a living process is that rank; [`Error::Forked`].
    pub(crate) fn publish(&self, address: &[u8; 64]) -> Result<()> {
        if !self.is_own_process() {
            return Err(Error::Forked);
        }
        let mut owner = 0;
        let slot = self.slot(self.rank).ok_or(Error::BadRank { rank: self.rank, size: self.size })?;
        for _ in 0..MAX_ATTEMPTS {
            let found = slot.claim();
            if found.state() == SlotState::Publishing {
                slot.wait(found);
                if slot.claim() != found {
                    continue;
                }
            }
            if found.state() == SlotState::Here
                && let Some((pid, theirs)) = slot.read(found.incarnation())
            {
                owner = pid;
                if self.is_alive(&theirs) {
                    break;
                }
            }
            let claim = found.next();
            let here = claim.with(SlotState::Here);
            if !slot.replace(found, claim) {
                continue;
            }
            failpoint!("link.rank_claimed");
            if slot.write(claim, std::process::id(), address) && slot.replace(claim, here) {
                failpoint!("link.rank_published");
                self.published.store(here.0, Ordering::Relaxed);
                self.announce();
                return Ok(());
            }
        }
        Err(Error::RankTaken { job: self.job.clone(), rank: self.rank, pid: owner })
    }

    /// Returns the process that is a rank, or was it last. It may have ended.
    pub(crate) fn member(&self, rank: usize) -> Option<Member> {
        let slot = self.slot(rank)?;
        for _ in 0..MAX_ATTEMPTS {
            let claim = slot.claim();
            let has_left = match claim.state() {
                SlotState::Here => false,
                SlotState::Left => true,
                SlotState::Empty | SlotState::Publishing => return None,
            };
            let incarnation = claim.incarnation();
            if let Some((pid, address)) = slot.read(incarnation) {
                return Some(Member { address, pid, incarnation, has_left });
            }
        }
        None
    }

    /// Changes each time that a rank publishes or leaves.
    pub(crate) fn changes(&self) -> u32 {
        self.header(CHANGES).map_or(0, |changes| changes.load(Ordering::Acquire))
    }

    fn is_own_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// Whether a process listens there. Asks twice, since another process that asks may have bound
    /// the name for a moment.
    fn is_alive(&self, address: &[u8; 64]) -> bool {
        !(self.is_gone)(address) && {
            std::thread::sleep(RETRY_DELAY);
            !(self.is_gone)(address)
        }
    }

    fn announce(&self) {
        if let Some(changes) = self.header(CHANGES) {
            changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A word of the header.
    fn header(&self, word: usize) -> Option<&AtomicU32> {
        self.object.view::<u32>().ok()?.atomic(word)
    }

    /// The slot of a rank of the job.
    fn slot(&self, rank: usize) -> Option<RankSlot<'_>> {
        let all = self.object.view::<u64>().ok()?;
        let first = (rank < self.size).then_some((HEADER_SIZE + rank * SLOT_SIZE) / 8)?;
        let claim = all.atomic(first)?;
        let mut words = [claim; WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = all.atomic(first + 1 + at)?;
        }
        Some(RankSlot { claim, words })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let here = SlotClaim(self.published.load(Ordering::Relaxed));
        if here.0 == 0 || !self.is_own_process() {
            return;
        }
        // Unless another process has taken this one for ended.
        if self.slot(self.rank).is_some_and(|slot| slot.replace(here, here.with(SlotState::Left))) {
            failpoint!("link.rank_left");
            self.announce();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::sync::Barrier;
    use sys::CloseOnFork;

    /// Whether no socket has the name that the address begins with.
    fn is_gone(address: &[u8; 64]) -> bool {
        let length = address.iter().position(|&byte| byte == 0).unwrap_or(address.len());
        sys::is_free(&address[..length]).unwrap_or(false)
    }

    /// Listens at a name that ends so, and returns its address. Children of other tests do not.
    fn listen(name: &str) -> (CloseOnFork, [u8; 64]) {
        let name = format!("umf-link-test-{}-{name}", std::process::id());
        let made = CloseOnFork::make(|| {
            let socket = sys::new_socket()?;
            sys::listen(&socket, name.as_bytes())?;
            Ok(socket)
        });
        let socket = made.unwrap();
        let mut address = [0; 64];
        address[..name.len()].copy_from_slice(name.as_bytes());
        (socket, address)
    }

    fn job(name: &str) -> String {
        format!("{name}-{}", std::process::id())
    }

    fn join(job: &str, rank: usize, size: usize) -> Membership {
        Membership::join(job, rank, size, is_gone).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Waits until the changes are not `seen`.
    fn wait(membership: &Membership, seen: u32) {
        let end = Instant::now() + LONG;
        while membership.changes() == seen && Instant::now() < end {
            std::thread::sleep(RETRY_DELAY);
        }
    }

    #[test]
    fn published_rank_is_found_and_its_leaving_is_seen() {
        let job = job("found");
        let (first, second) = (join(&job, 0, 2), join(&job, 1, 2));
        assert_eq!((first.member(0), first.member(1), first.member(2)), (None, None, None));
        let (_socket, address) = listen("found");
        let seen = first.changes();
        let member = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                wait(&first, seen);
                first.member(1)
            });
            second.publish(&address).unwrap();
            waiter.join().unwrap().unwrap()
        });
        assert_eq!(member.address, address);
        assert!(!member.has_left);
        let seen = first.changes();
        drop(second);
        assert_ne!(first.changes(), seen);
        assert_eq!(first.member(1), Some(Member { has_left: true, ..member }));
        // Also when another process is that rank by now.
        let (_other, address) = listen("found-other");
        let second = join(&job, 1, 2);
        second.publish(&address).unwrap();
        let now = first.member(1).unwrap();
        assert!(now.address == address && now.incarnation != member.incarnation && !now.has_left);
    }

    #[test]
    fn second_publisher_of_living_rank_is_refused() {
        let job = job("taken");
        let (first, second) = (join(&job, 0, 1), join(&job, 0, 1));
        let (socket, address) = listen("taken");
        let (_other_socket, other) = listen("taken-other");
        first.publish(&address).unwrap();
        let member = first.member(0).unwrap();
        let pid = std::process::id().cast_signed();
        let taken = Error::RankTaken { job: job.clone(), rank: 0, pid };
        assert_eq!(second.publish(&other).unwrap_err(), taken);
        assert_eq!(second.member(0), Some(member));
        // The process that was the rank ends.
        drop(socket);
        second.publish(&other).unwrap();
        let now = first.member(0).unwrap();
        assert!(now.address == other && now.incarnation != member.incarnation);
        // Its end is not taken for that of its successor, nor for a leave.
        drop(first);
        assert_eq!(second.member(0), Some(now));
    }

    #[test]
    fn one_of_concurrent_publishers_wins() {
        let job = job("race");
        let all: Vec<_> = (0..4).map(|number| listen(&format!("race-{number}"))).collect();
        let meet = Barrier::new(all.len());
        let witness = join(&job, 1, 2);
        for _ in 0..100 {
            let wins = std::thread::scope(|scope| {
                let publish = |address: [u8; 64]| {
                    let (meet, job, witness) = (&meet, &job, &witness);
                    move || {
                        let membership = join(job, 0, 2);
                        meet.wait();
                        let result = membership.publish(&address);
                        meet.wait();
                        match &result {
                            Ok(()) => assert_eq!(witness.member(0).unwrap().address, address),
                            Err(error) => assert!(matches!(error, Error::RankTaken { .. }), "{error}"),
                        }
                        meet.wait();
                        usize::from(result.is_ok())
                    }
                };
                let threads: Vec<_> = all.iter().map(|(_, address)| scope.spawn(publish(*address))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
            });
            assert_eq!(wins, 1);
            assert!(witness.member(0).unwrap().has_left);
        }
    }

    #[test]
    fn stalled_publisher_loses_its_claim() {
        let job = job("stalled");
        let (first, second) = (join(&job, 0, 1), join(&job, 0, 1));
        let (_socket, address) = listen("stalled");
        let slot = first.slot(0).unwrap();
        let stalled = slot.claim().next();
        assert!(slot.replace(slot.claim(), stalled));
        assert_eq!(second.member(0), None);
        second.publish(&address).unwrap();
        let member = second.member(0).unwrap();
        assert_eq!(member.address, address);
        // It goes on.
        assert!(!slot.write(stalled, 1, &[1; 64]));
        assert!(!slot.replace(stalled, stalled.with(SlotState::Here)));
        assert_eq!(second.member(0), Some(member));
    }

    #[test]
    fn word_of_stalled_publisher_is_replaced() {
        let membership = join(&job("words"), 0, 1);
        let slot = membership.slot(0).unwrap();
        let stalled = slot.claim().next();
        let claim = stalled.next();
        assert!(slot.replace(slot.claim(), claim));
        assert!(slot.write(claim, 7, &[7; 64]));
        // What the stalled one had loaded before the claim does not stand there any more.
        let (value, old) = (stalled.incarnation() << 32 | 1, 0);
        assert!(slot.words[3].compare_exchange(old, value, Ordering::Relaxed, Ordering::Relaxed).is_err());
        assert_eq!(slot.read(claim.incarnation()), Some((7, [7; 64])));
        // A word that it replaced in time is no part of what is read, until it is written again.
        slot.words[3].store(value, Ordering::Relaxed);
        assert_eq!(slot.read(claim.incarnation()), None);
        assert!(slot.write(claim, 7, &[7; 64]));
        assert_eq!(slot.read(claim.incarnation()), Some((7, [7; 64])));
    }

    #[test]
    fn invalid_sizes_and_names_are_refused() {
        let job = job("checked");
        let _meeting = join(&job, 0, 3);
        let fails = |job: &str, rank, size| Membership::join(job, rank, size, is_gone).unwrap_err();
        assert_eq!(fails(&job, 0, 4), Error::SizeMismatch { theirs: 3, mine: 4 });
        assert_eq!(fails(&job, 0, MAX_RANKS), Error::SizeMismatch { theirs: 3, mine: MAX_RANKS });
        for (rank, size) in [(3, 3), (0, 0), (0, MAX_RANKS + 1), (usize::MAX, 3)] {
            assert_eq!(fails(&job, rank, size), Error::BadRank { rank, size });
        }
        for name in ["", "a b", "\u{e4}", &"j".repeat(33)] {
            assert!(matches!(fails(name, 0, 1), Error::BadName { .. }), "{name}");
        }
        let small = format!("{job}-small");
        let domain = Domain::join(&format!("umf-link/{small}"), DomainSettings::default()).unwrap();
        let _object = domain.find_or_create(1, KIND).unwrap();
        let text = fails(&small, 0, 1).to_string();
        assert!(text.contains(&small) && text.contains("too small"), "{text}");
        let last = join(&format!("{:j<32}", std::process::id()), MAX_RANKS - 1, MAX_RANKS);
        let (_socket, address) = listen("checked");
        last.publish(&address).unwrap();
        assert_eq!(last.member(MAX_RANKS - 1).map(|member| member.address), Some(address));
    }

    /// Forks, and runs `child` there.
    fn fork(child: impl FnOnce()) -> i32 {
        // SAFETY: the child uses what the fork handlers of the allocator and of umf prepared.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        assert!(pid > 0);
        pid
    }

    /// Sends a signal, which may be 0, and waits for the end.
    fn end(pid: i32, signal: i32) {
        let mut status = 0;
        // SAFETY: a child of this process that was not reaped; `status` is valid for the write.
        unsafe { (libc::kill(pid, signal), libc::waitpid(pid, &raw mut status, 0)) };
        assert_eq!(status, signal);
    }

    #[test]
    fn killed_process_is_replaced_in_any_state() {
        let job = job("killed");
        let membership = join(&job, 0, 2);
        let mut last = 0;
        for is_done in [true, false, true] {
            let seen = membership.changes();
            let pid = fork(|| {
                let other = join(&job, 1, 2);
                let (_socket, address) = listen("killed");
                if is_done {
                    other.publish(&address).unwrap();
                } else {
                    let slot = other.slot(1).unwrap();
                    assert!(slot.replace(slot.claim(), slot.claim().next()));
                    other.announce();
                }
                std::thread::sleep(LONG);
            });
            wait(&membership, seen);
            let before = membership.member(1);
            assert_eq!(before.is_some(), is_done);
            end(pid, libc::SIGKILL);
            let (_socket, address) = listen("killed-other");
            let other = join(&job, 1, 2);
            other.publish(&address).unwrap();
            let member = membership.member(1).unwrap();
            assert_eq!(member.address, address);
            assert!(member.incarnation > last);
            last = member.incarnation;
            if let Some(before) = before {
                assert!(before.incarnation < last && !before.has_left);
            }
        }
    }

    #[test]
    fn forked_child_publishes_and_leaves_nothing() {
        let job = job("forked");
        let (mut first, second) = (Some(join(&job, 0, 2)), join(&job, 1, 2));
        let (_socket, address) = listen("forked");
        first.as_ref().unwrap().publish(&address).unwrap();
        let pid = fork(|| {
            assert_eq!(second.publish(&address), Err(Error::Forked));
            drop(first.take());
        });
        end(pid, 0);
        assert_eq!(second.member(0).map(|member| member.address), Some(address));
    }

    /// A process of the same user writes anything anywhere, meanwhile and between calls.
    #[test]
    fn overwritten_words_do_no_harm() {
        let job = job("scribbling");
        let membership = join(&job, 1, 3);
        let (_socket, address) = listen("scribbling");
        let view = membership.object.view::<u64>().unwrap();
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        };
        let slots = HEADER_SIZE / 8..(HEADER_SIZE + 3 * SLOT_SIZE) / 8;
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (is_over, slots) = (&is_over, slots.clone());
            let mut value = next();
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    for word in slots.clone() {
                        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        view.set(word, value).unwrap();
                    }
                }
            });
            for _ in 0..20 {
                for rank in 0..4 {
                    let _ = membership.member(rank);
                }
                let _ = membership.publish(&address);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for round in 0..60 {
            for word in [0].into_iter().chain(slots.clone()) {
                view.set(word, if round % 3 == 0 { u64::MAX << (next() % 64) } else { next() }).unwrap();
            }
            for rank in 0..4 {
                let _ = membership.member(rank);
            }
            if let Ok(()) = membership.publish(&address) {
                assert_eq!(membership.member(1).map(|member| member.address), Some(address));
            }
            let _ = Membership::join(&job, 0, 3, is_gone).map(drop);
        }
    }
}
