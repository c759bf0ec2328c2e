//! What all ranks of a job do together.
//!
//! Their messages have a context of their own on the links of the ranks. All ranks call the same collectives in the same order, so that a
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
use crate::{Error, Link, LinkSettings, Result};
use tag::{Kind, Tag};

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
        let spin = Spin::new(settings.is_crowded);
        Self { me, size, spin, most, enforce, links, bell, number: 0, broken: None, scratch: Vec::new() }
    }

    /// The links that it has for the length of a collective.
    pub(crate) const fn links_mut(&mut self) -> &mut Vec<Option<Link>> {
        &mut self.links
    }

    /// Tells who is linked now, if collectives are over.
    pub(crate) fn meet(&self, link: &Link) {
        if let Some(error) = &self.broken {
            link.shared.give_up(gone(error));
        }
    }

    /// Whether there was any, and they are not over.
    pub(crate) const fn goes_on(&self) -> bool {
        self.number > 0 && self.broken.is_none()
    }

    /// Whether collectives are not over.
    pub(crate) fn usable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Ends collectives for good, and tells everybody; returns the reason.
    pub(crate) fn give_up(&mut self, error: Error) -> Error {
        let error = match error {
            // Whoever closed its link may have said why.
            Error::Closed { .. } => self.what_was_said().unwrap_or(error),
            error => error,
        };
        for link in self.links.iter().flatten() {
            link.shared.give_up(gone(&error));
        }
        self.broken = Some(error.clone());
        error
    }

    fn what_was_said(&self) -> Option<Error> {
        let mut links = self.links.iter().enumerate();
        links.find_map(|(rank, link)| messages::given_up(rank, link.as_ref()?))
    }

    /// Whether all that it is linked with are there, and have not given up.
    pub(crate) fn look(links: &Links) -> Result<()> {
        let mut links = links.iter().enumerate();
        links.try_for_each(|(rank, link)| match link {
            Some(link) => messages::given_up(rank, link).map_or_else(|| link.look(), Err),
            None => Ok(()),
        })
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
        // With more ranks than processors it counts how often ranks wait, and not in how many steps.
        if self.spin.is_crowded() {
            return self.barrier_by_tree(tag, limit);
        }
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

/// The process because of whose end collectives are over.
const fn gone(error: &Error) -> Option<i32> {
    match error {
        Error::PeerGone { pid } => Some(*pid),
        _ => None,
    }
}
