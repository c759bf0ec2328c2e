//! [`Roster`]: which processes have joined as which ranks, as far as this one knows. So the end of one is known even to ranks that it
//! never had a link with.
//!
//! Who joins tells all that listen already, which keep its name, and keeps theirs: names that are not used twice, so that one at which
//! nobody listens any more is that of a rank that is gone. No fd is kept for this.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use umf_ipc::system::start_time;

use crate::{Error, LinkAddress, sys};

/// A process that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub address: LinkAddress,
    pub pid: i32,
    /// When it was started, which tells it from others with its pid.
    started: Option<u64>,
}

/// What a process takes at most from closing its sockets to its end.
const LAST_BREATH: Duration = Duration::from_millis(20);

impl Member {
    pub(super) fn new(address: LinkAddress, pid: i32) -> Self {
        Self { address, pid, started: u32::try_from(pid).ok().and_then(start_time) }
    }

    /// How it went, if nobody listens at its address.
    pub(super) fn end(&self) -> Error {
        if self.lives() { Error::Closed { pid: self.pid } } else { Error::PeerGone { pid: self.pid } }
    }

    fn lives(&self) -> bool {
        let Some(pidfd) = Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        else {
            return false;
        };
        let is_it =
            self.started.is_some() && u32::try_from(self.pid).ok().and_then(start_time) == self.started;
        is_it && !sys::is_ready(pidfd.as_fd(), PollFlags::IN, Some(LAST_BREATH)).unwrap_or(true)
    }
}

/// The latest process of each rank.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    /// With the number of each entry.
    members: Vec<Option<(u64, Member)>>,
    /// How many have been entered.
    entries: u64,
}

impl Roster {
    pub(super) fn new(size: usize) -> Self {
        Self { members: vec![None; size], entries: 0 }
    }

    pub(super) fn enter(&mut self, rank: usize, member: Member) {
        if let Some(place) = self.members.get_mut(rank) {
            self.entries += 1;
            *place = Some((self.entries, member));
        }
    }

    /// Forgets who was this rank, if it is this one.
    pub(super) fn strike(&mut self, rank: usize, member: &Member) {
        if self.member(rank) == Some(member) {
            self.members[rank] = None;
        }
    }

    pub(super) fn member(&self, rank: usize) -> Option<&Member> {
        self.entry(rank).map(|(_, member)| member)
    }

    /// With a number that no other entry has, from 1 on.
    pub(super) fn entry(&self, rank: usize) -> Option<(u64, &Member)> {
        self.members.get(rank)?.as_ref().map(|(number, member)| (*number, member))
    }
}

/// Who was known before a look at who listens, and who does.
#[derive(Debug)]
pub(super) struct Sight {
    known: Roster,
    listening: HashMap<usize, Vec<LinkAddress>>,
}

impl Sight {
    /// `known` is from before `listening` was read: who is known listened by then.
    pub(super) fn new(known: Roster, listening: impl IntoIterator<Item = (usize, LinkAddress)>) -> Self {
        let mut ranks: HashMap<usize, Vec<_>> = HashMap::new();
        for (rank, address) in listening {
            ranks.entry(rank).or_default().push(address);
        }
        Self { known, listening: ranks }
    }

    /// Where processes listen that say that they are this rank.
    pub(super) fn of(&self, rank: usize) -> &[LinkAddress] {
        self.listening.get(&rank).map_or(&[], Vec::as_slice)
    }

    /// Who was this rank, where nobody seems to listen any more who is. (The kernel's table may leave out who does, as others come and go.)
    pub(super) fn missed(&self, rank: usize) -> Option<&Member> {
        let member = self.known.member(rank)?;
        // Whoever took its place may not have said so yet.
        self.of(rank).is_empty().then_some(member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_not_missed_nor_is_who_was_replaced() {
        let address = |name: &str| LinkAddress::new([1; 16], 0, name);
        let own = i32::try_from(std::process::id()).unwrap();
        let member = Member::new(address("umf-link-1"), own);
        let mut known = Roster::new(3);
        known.enter(1, member.clone());
        known.enter(7, member.clone());
        let sight = |listening: &[(usize, &str)]| {
            Sight::new(known.clone(), listening.iter().map(|(rank, name)| (*rank, address(name))))
        };
        assert_eq!(sight(&[]).missed(1), Some(&member));
        assert_eq!(sight(&[]).missed(2), None, "nobody knew it");
        assert_eq!(sight(&[(2, "umf-link-2")]).missed(1), Some(&member));
        assert_eq!(sight(&[(1, "umf-link-1")]).missed(1), None);
        assert_eq!(sight(&[(1, "umf-link-new")]).missed(1), None, "another one is there");
        let two = sight(&[(1, "umf-link-1"), (2, "umf-link-2"), (1, "umf-link-new")]);
        assert_eq!(two.of(1), [address("umf-link-1"), address("umf-link-new")]);
        assert!(two.of(0).is_empty());
        assert_eq!(member.end(), Error::Closed { pid: own }, "this process lives");
        let other = Member { started: Some(1), ..member.clone() };
        assert_eq!(other.end(), Error::PeerGone { pid: own }, "another process with its pid");
        known.strike(1, &other);
        assert_eq!(known.member(1), Some(&member));
        let (before, _) = known.entry(1).unwrap();
        known.enter(1, member.clone());
        assert!(known.entry(1).unwrap().0 > before, "entered again");
        known.strike(1, &member);
        assert_eq!(known.member(1), None);
    }
}
