//! Messages of a collective, several at once.

use super::Group;
use super::tag::Tag;
use crate::fabric::wait_many;
use crate::parts::{Destination, List, Source};
use crate::receiver::{Received, Receiving};
use crate::sender::SendRequest;
use crate::tag::Context;
use crate::wait::Limit;
use crate::{Error, Link, Result};

/// Said of a message of another length.
const LENGTH: &str = "its memory has another length";
/// Said of a message of another collective.
pub(super) const KIND: &str = "it calls another collective, or another operation";

/// A message that is on its way to a rank.
pub(super) type Going<'d> = (usize, SendRequest<'d>);

/// A message that is to come from a rank.
#[derive(Debug)]
pub(super) struct Coming<'d> {
    from: usize,
    tag: Tag,
    length: usize,
    receiving: Receiving<'d>,
    is_here: bool,
}

impl<'d> Coming<'d> {
    pub(super) fn new(from: usize, tag: Tag, into: Destination<'d>) -> Self {
        let length = into.len();
        let mut receiving = Receiving::new(tag.any_kind(), into, None);
        receiving.is_group = true;
        Self { from, tag, length, receiving, is_here: false }
    }

    /// As [`Coming::new`], where this rank sends nothing meanwhile: it may wait for the sender's half of the copying.
    pub(super) fn alone(from: usize, tag: Tag, into: Destination<'d>, limit: Limit) -> Self {
        let mut coming = Self::new(from, tag, into);
        coming.receiving.blocking = Some(limit);
        coming
    }

    fn check(&self, received: Received) -> Result<()> {
        let what = match received {
            Received { tag, .. } if tag != self.tag.value() => KIND,
            Received { length, .. } if length != self.length => LENGTH,
            _ => return Ok(()),
        };
        Err(Error::Mismatch { rank: self.from, what })
    }

    fn attempt(&mut self, link: &mut Link, asleep: bool) -> Result<Option<Received>> {
        link.attempt(&mut self.receiving, asleep).map_err(|error| match error {
            Error::Truncated { .. } | Error::NotWhole { .. } => {
                Error::Mismatch { rank: self.from, what: LENGTH }
            }
            error => error,
        })
    }

    fn poll(&mut self, link: &mut Link, asleep: bool) -> Result<bool> {
        if self.is_here {
            return Ok(true);
        }
        let mut received = self.attempt(link, asleep)?;
        if received.is_none()
            && let Some(error) = given_up(self.from, link)
        {
            received = Some(self.attempt(link, asleep)?.ok_or(error)?);
        }
        if let Some(received) = received {
            self.check(received)?;
            self.is_here = true;
        }
        Ok(self.is_here)
    }
}

/// Why a rank takes no part in collectives any more, if that is so. What it sent before may have come just now.
pub(super) fn given_up(rank: usize, link: &Link) -> Option<Error> {
    match link.shared.has_given_up()? {
        0 => Some(Error::GivenUp { rank }),
        pid => Some(Error::PeerGone { pid }),
    }
}

impl Group {
    /// Begins to send to a rank.
    pub(super) fn start<'d>(&mut self, to: usize, tag: Tag, list: List<'d>) -> Result<Going<'d>> {
        let link = self.links[to].as_mut().ok_or(Error::GivenUp { rank: to })?;
        Ok((to, link.start_send_in((tag.value(), Context::Collectives), Source(list))?))
    }

    /// Waits for all of these at once. `in_order`: what comes is taken in the order of the list.
    pub(super) fn finish(
        &mut self,
        going: &mut [Going<'_>],
        coming: &mut [Coming<'_>],
        in_order: bool,
        limit: &mut Limit,
    ) -> Result<()> {
        let (links, bell, spin) = self.links();
        wait_many(links, bell, spin, limit, "a collective", |links, asleep| {
            let mut is_done = true;
            for (to, request) in &mut *going {
                if let Some(link) = &mut links[*to] {
                    let is_sent = link.test_send(request)?;
                    if !is_sent
                        && let Some(error) = given_up(*to, link)
                        && !link.test_send(request)?
                    {
                        return Err(error);
                    }
                    is_done &= is_sent;
                }
            }
            for one in &mut *coming {
                let Some(link) = &mut links[one.from] else { continue };
                let is_here = one.poll(link, asleep)?;
                is_done &= is_here;
                if in_order && !is_here {
                    break;
                }
            }
            Ok(is_done.then_some(()))
        })
    }

    /// Tells one rank that this one is so far, and waits until another one is.
    pub(super) fn signal(&mut self, tag: Tag, to: usize, from: usize, limit: &mut Limit) -> Result<()> {
        let mut nothing = [0_u8; 0];
        let going = self.start(to, tag, Source::from(&[]).0)?;
        let coming = Coming::new(from, tag, Destination::from(&mut nothing));
        self.finish(&mut [going], &mut [coming], false, limit)
    }
}
