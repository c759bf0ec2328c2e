//! [`Membership`]: the table in which the ranks of a job find each other.
//!
//! The table is an object of the job's domain, for which all ranks register. It exists until the
//! last rank ends. Each rank has a slot, which its process writes. A rank is alive while a process
//! listens at the socket that its address names.
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
//! | 8 | 19 x 8 | pid, address and identity, 4 bytes a word; the upper halves have the incarnation |
//!
//! To publish, a process claims the slot under a new incarnation, writes the words, and changes the
//! state. If the previous publisher is gone or stalled, the next one claims the slot from it. A
//! stalled publisher can continue at any time. It cannot replace a word of a newer incarnation, and
//! then finds that its claim is lost. A reader accepts words of one incarnation only.
//!
//! Processes of the same user can write any word. Each word is read once and checked, and every
//! loop is bounded.

use core::array::from_fn;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umf_domain::{Domain, DomainSettings, Object};
use umf_ipc::rendezvous::Directory;
use umf_sync::{failpoint, fork};

use crate::address::check_name;
use crate::{Error, LinkSettings, Result};

/// The most ranks of a job: as many as a domain has processes.
const MAX_RANKS: usize = 1024;
/// The longest name of a job.
const MAX_NAME: usize = 32;
/// The timeout of joining the domain, whose processes may be slow on a busy machine.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The most objects of the domain. It has one, and a second one until dead ranks are reclaimed.
const MAX_OBJECTS: u32 = 8;
const KIND: u32 = u32::from_le_bytes(*b"RNK2");
const HEADER_SIZE: usize = 4096;
const SLOT_SIZE: usize = 192;
/// The size of the object of each job. Pages that are not used take no memory.
const OBJECT_SIZE: usize = HEADER_SIZE + MAX_RANKS * SLOT_SIZE;

/// Words of the header.
const CHANGES: usize = 0;
const SIZE: usize = 1;

/// Words of a slot after the claim: the pid, the address, and the identity.
const WORDS: usize = 19;
/// The first word of the identity.
const IDENTITY: usize = 17;

/// The most attempts to read or claim a slot that changes meanwhile.
const MAX_ATTEMPTS: usize = 16;
/// The time after which the publisher of a half written slot counts as stalled.
const STALL_TIMEOUT: Duration = Duration::from_millis(20);
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Returns whether no process listens at an address any more, in this directory or without one.
pub(crate) type IsGone = fn(Option<&Directory>, &[u8; 64]) -> bool;

/// The membership of this process in a job: a shared object with a slot for each rank.
///
/// Dropping it marks the rank as left, if this process published it.
#[derive(Debug)]
pub(crate) struct Membership {
    job: String,
    rank: usize,
    size: usize,
    is_gone: IsGone,
    directory: Option<Directory>,
    object: Object,
    /// The claim word that this process published; 0 if none.
    published: AtomicU64,
    /// The process that joined, as [`fork::generation`] counts.
    process: u32,
}

/// The contents of a slot: the process that is a rank, or was the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// The address at which it listens.
    pub address: [u8; 64],
    /// Its pid in its own pid namespace, for error texts.
    pub pid: i32,
    /// A number that the process has at random: pids of two namespaces may be the same.
    pub identity: u64,
    /// Differs between processes that are the same rank one after another.
    pub incarnation: u64,
    /// Whether it left the job by dropping its `Membership`.
    pub has_left: bool,
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Empty,
    Publishing,
    Here,
    Left,
}

/// The first word of a slot: its state and incarnation.
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

/// Returns the next incarnation. It is never 0, which means a slot without a process.
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

    /// Returns pid, address and identity, or `None` if a word has another incarnation.
    fn read(&self, incarnation: u64) -> Option<(i32, [u8; 64], u64)> {
        let mut values = [0; WORDS];
        for (value, word) in values.iter_mut().zip(self.words) {
            let word = word.load(Ordering::Acquire);
            if (word >> 32) as u32 != incarnation as u32 {
                return None;
            }
            *value = word as u32;
        }
        let address = from_fn(|at| values[1 + at / 4].to_le_bytes()[at % 4]);
        let identity = u64::from(values[IDENTITY]) | u64::from(values[IDENTITY + 1]) << 32;
        Some((values[0].cast_signed(), address, identity))
    }

    /// Writes pid, address and identity. Returns `false` if another publisher claimed the slot.
    fn write(&self, claim: SlotClaim, pid: u32, address: &[u8; 64], identity: u64) -> bool {
        let value = |part: usize| match part {
            0 => pid,
            IDENTITY.. => (identity >> (32 * (part - IDENTITY))) as u32,
            part => u32::from_le_bytes(from_fn(|at| address[(part - 1) * 4 + at])),
        };
        let tag = u64::from(claim.incarnation() as u32) << 32;
        self.words.iter().enumerate().all(|(part, word)| {
            let value = tag | u64::from(value(part));
            // The word changes only if a stalled publisher continues, once, or in a hostile
            // process.
            (0..MAX_ATTEMPTS).any(|_| {
                let current = word.load(Ordering::Acquire);
                // After the load, so that the claim of a publisher that wrote the word is seen.
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
    /// # Errors
    /// [`Error::BadName`], [`Error::BadRank`], [`Error::SizeMismatch`], [`Error::Membership`].
    pub(crate) fn join(
        job: &str,
        rank: usize,
        size: usize,
        is_gone: IsGone,
        links: &LinkSettings,
    ) -> Result<Self> {
        check_name(job, MAX_NAME)?;
        if rank >= size || size > MAX_RANKS {
            return Err(Error::BadRank { rank, size });
        }
        let failed = |error| Error::Membership { job: job.to_owned(), error };
        let mut settings = DomainSettings::default();
        (settings.timeout, settings.max_objects) = (JOIN_TIMEOUT, MAX_OBJECTS);
        (settings.directory, settings.allow) = (links.directory.clone(), links.allow);
        let domain = Domain::join(&format!("umf-link/{job}"), settings).map_err(failed)?;
        let object = domain.find_or_create(OBJECT_SIZE, KIND).map_err(failed)?;
        let membership = Self {
            job: job.to_owned(),
            rank,
            size,
            is_gone,
            directory: links.place(),
            object,
            published: AtomicU64::new(0),
            process: fork::generation(),
        };
        let (Some(stored), Some(_)) = (membership.header(SIZE), membership.slot(size - 1)) else {
            let what = "the object with the slots of the ranks is too small";
            return Err(failed(umf_domain::Error::Misbehaved { domain: domain.name().to_owned(), what }));
        };
        let stored = stored.compare_exchange(0, size as u32, Ordering::Relaxed, Ordering::Relaxed);
        match stored.map_or_else(|other| other as usize, |_| size) {
            same if same == size => Ok(membership),
            other => Err(Error::SizeMismatch { other, own: size }),
        }
    }

    /// Publishes this rank's address and identity, so that other ranks find it. This process must
    /// listen there.
    ///
    /// # Errors
    /// [`Error::RankTaken`] if a living process is that rank; [`Error::Forked`].
    pub(crate) fn publish(&self, address: &[u8; 64], identity: u64) -> Result<()> {
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
                && let Some((pid, other_address, _)) = slot.read(found.incarnation())
            {
                owner = pid;
                if self.is_alive(&other_address) {
                    break;
                }
            }
            let claim = found.next();
            let here = claim.with(SlotState::Here);
            if !slot.replace(found, claim) {
                continue;
            }
            failpoint!("link.rank_claimed");
            if slot.write(claim, std::process::id(), address, identity) && slot.replace(claim, here) {
                failpoint!("link.rank_published");
                self.published.store(here.0, Ordering::Relaxed);
                self.announce();
                return Ok(());
            }
        }
        Err(Error::RankTaken { job: self.job.clone(), rank: self.rank, pid: owner })
    }

    /// Returns the process that is a rank, or was the last one. It may have ended.
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
            if let Some((pid, address, identity)) = slot.read(incarnation) {
                return Some(Member { address, pid, identity, incarnation, has_left });
            }
        }
        None
    }

    /// Returns a counter that changes each time a rank publishes or leaves.
    pub(crate) fn changes(&self) -> u32 {
        self.header(CHANGES).map_or(0, |changes| changes.load(Ordering::Acquire))
    }

    fn is_own_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// Whether a process listens at the address. Checks twice, because the check of another process
    /// binds the name for a moment.
    fn is_alive(&self, address: &[u8; 64]) -> bool {
        !self.is_gone(address) && {
            std::thread::sleep(RETRY_DELAY);
            !self.is_gone(address)
        }
    }

    /// Returns whether no process listens at the address any more.
    pub(crate) fn is_gone(&self, address: &[u8; 64]) -> bool {
        (self.is_gone)(self.directory.as_ref(), address)
    }

    fn announce(&self) {
        if let Some(changes) = self.header(CHANGES) {
            changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns a word of the header.
    fn header(&self, word: usize) -> Option<&AtomicU32> {
        self.object.view::<u32>().ok()?.atomic(word)
    }

    /// Returns the slot of a rank.
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
        // The exchange fails if another process took this one for dead and claimed the slot.
        if self.slot(self.rank).is_some_and(|slot| slot.replace(here, here.with(SlotState::Left))) {
            failpoint!("link.rank_left");
            self.announce();
        }
    }
}

#[cfg(test)]
mod tests;
