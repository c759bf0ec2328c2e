//! What all ranks of a job do together.
//!
//! Every rank has a link with every other one for this alone. All ranks call the same collectives in the same order, so that a
//! collective's number, which each counts, names it in the tags of its messages.

mod allreduce;
mod messages;
mod moves;
mod part;
mod tag;

pub(crate) use part::share;

use std::sync::Arc;
use std::time::Duration;

use crate::fabric::Links;
use crate::lane::Bell;
use crate::spin::Spin;
use crate::wait::Limit;
use crate::{Error, Link, LinkSettings, Result, TagMatch};
use tag::{GIVEN_UP, Kind, Tag};

/// The ranks, as one of them has them.
#[derive(Debug)]
pub(crate) struct Group {
    me: usize,
    size: usize,
    /// What it has learned of waiting, and the most that it spins.
    spin: Spin,
    most: Duration,
    /// As [`crate::LinkSettings::enforce`].
    enforce: bool,
    links: Vec<Option<Link>>,
    bell: Arc<Bell>,
    /// How many collectives were begun.
    number: u64,
    broken: Option<Error>,
    /// Where short messages of several ranks come.
    scratch: Vec<u8>,
}

impl Group {
    pub(crate) fn new(me: usize, size: usize, settings: &LinkSettings, bell: Arc<Bell>) -> Self {
        let (most, enforce) = (settings.spin, settings.enforce);
        let links = (0..size).map(|_| None).collect();
        let spin = Spin::default();
        Self { me, size, spin, most, enforce, links, bell, number: 0, broken: None, scratch: Vec::new() }
    }

    /// Adds a link, unless there is one, or collectives are over.
    pub(crate) fn enter(&mut self, rank: usize, mut link: Link) {
        link.set_timeout(None);
        if self.broken.is_some() {
            say_given_up(&mut link, None);
        } else if self.links[rank].as_ref().is_none_or(|link| link.look().is_err()) {
            self.links[rank] = Some(link);
        }
    }

    /// Ranks that it has no link with.
    pub(crate) fn missing(&self) -> impl Iterator<Item = usize> + use<> {
        let missing: Vec<usize> = (0..self.size).filter(|rank| self.lacks(*rank)).collect();
        missing.into_iter()
    }

    fn lacks(&self, rank: usize) -> bool {
        rank != self.me && self.links[rank].is_none()
    }

    /// Whether it has a link with everybody.
    pub(crate) fn is_whole(&self) -> bool {
        !(0..self.size).any(|rank| self.lacks(rank))
    }

    /// Whether collectives are not over.
    pub(crate) fn usable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Whether all that it has a link with are there.
    pub(crate) fn look(&self) -> Result<()> {
        self.links.iter().flatten().try_for_each(Link::look)
    }

    /// Ends collectives for good, and tells everybody; returns the reason.
    pub(crate) fn give_up(&mut self, error: Error) -> Error {
        let error = match error {
            // Whoever closed its link may have said why.
            Error::Closed { .. } => self.what_was_said().unwrap_or(error),
            error => error,
        };
        let gone = match &error {
            Error::PeerGone { pid } => Some(*pid),
            _ => None,
        };
        for link in &mut self.links {
            if let Some(mut link) = link.take() {
                say_given_up(&mut link, gone);
            }
        }
        self.broken = Some(error.clone());
        error
    }

    fn what_was_said(&mut self) -> Option<Error> {
        for (rank, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            let mut bytes = [0; 8];
            let mut request = link.start_recv(TagMatch::masked(GIVEN_UP, u64::MAX), &mut bytes);
            let received = link.test_recv(&mut request);
            drop(request);
            if matches!(received, Ok(Some(_))) {
                let pid = u64::from_le_bytes(bytes) as i32;
                return Some(if pid == 0 { Error::GivenUp { rank } } else { Error::PeerGone { pid } });
            }
        }
        None
    }

    /// The tag of the messages of the next collective's first step.
    fn begin(&mut self, kind: Kind, code: u8) -> Tag {
        self.number += 1;
        Tag::new(kind, code, self.number)
    }

    /// The links of the others, and what waiting for them needs.
    fn links(&mut self) -> (&mut Links, &Bell, (&mut Spin, Duration)) {
        (&mut self.links, &self.bell, (&mut self.spin, self.most))
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.size).filter(move |rank| *rank != me)
    }

    /// Waits until all ranks have called it: in each step twice as many know of each other.
    pub(crate) fn barrier(&mut self, limit: &mut Limit) -> Result<()> {
        let tag = self.begin(Kind::Barrier, 0);
        let mut distance = 1;
        let mut step = 0;
        while distance < self.size {
            let (to, from) = ((self.me + distance) % self.size, (self.me + self.size - distance) % self.size);
            self.signal(tag.step(step), to, from, limit)?;
            distance *= 2;
            step += 1;
        }
        Ok(())
    }
}

/// Says that collectives are over, and because of whom: the process that ended.
fn say_given_up(link: &mut Link, gone: Option<i32>) {
    let pid = u64::from(gone.unwrap_or(0).cast_unsigned());
    // Who is gone does not hear it.
    let _ = link.start_send(GIVEN_UP, &pid.to_le_bytes());
}
