//! Receiving from whoever sends.

use super::{Fabric, wait_many};
use crate::parts::Destination;
use crate::receiver::{Probed, Received, Receiving};
use crate::wait::Limit;
use crate::{Error, Result, TagMatch, sys};

impl Fabric {
    /// What [`Fabric::recv_any`] would take next, and from which rank, if it is there. Never waits. Ends of ranks are told by
    /// `recv_any` alone.
    ///
    /// # Errors
    /// As [`crate::Link::probe`].
    pub fn probe_any(&mut self, wanted: impl Into<TagMatch>) -> Result<Option<(usize, Probed)>> {
        if !self.door.is_here() {
            return Err(Error::Forked);
        }
        self.take_in();
        let wanted = wanted.into();
        for rank in (self.next..self.size).chain(0..self.next) {
            let Some(link) = &mut self.points[rank] else { continue };
            match link.probe(wanted) {
                Ok(Some(probed)) => return Ok(Some((rank, probed))),
                Ok(None) => {}
                Err(error) if error.is_final() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Receives a message from any rank, and says from which: of several that have one, each gets its turn. Ranks that this one
    /// is not linked with yet are let in meanwhile.
    ///
    /// # Errors
    /// As [`crate::Link::recv`]. The end of a rank ([`Error::PeerGone`], [`Error::Closed`]) is told once, after all that it
    /// sent was received, and also if it was not linked with; then the others are waited for, until all are gone.
    pub fn recv_any<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<(usize, Received)> {
        if !self.door.is_here() {
            return Err(Error::Forked);
        }
        let mut limit = Limit::new(self.timeout);
        let mut receiving = Receiving::new(wanted.into(), into.into(), Some(limit));
        let mut begun = None;
        if (0..self.size).all(|rank| rank == self.me || self.told[rank]) {
            self.lookout.hurry();
        }
        loop {
            self.take_in();
            let Self { me, points, told, next, lookout, door, spin, most, bell, .. } = self;
            let size = points.len();
            let found = wait_many(points, bell, (spin, *most), &mut limit, "receiving", |links, asleep| {
                let (mut left, only) = (None, begun);
                for rank in (*next..size).chain(0..*next).filter(|rank| only.is_none_or(|only| only == *rank))
                {
                    let Some(link) = &mut links[rank] else { continue };
                    match link.attempt(&mut receiving, asleep) {
                        Ok(Some(received)) => return Ok(Some(Some((rank, received)))),
                        Ok(None) if receiving.bouncing.is_some() => {
                            // On its way, through this link.
                            begun = Some(rank);
                            return Ok(None);
                        }
                        Ok(None) => {}
                        Err(error) if error.is_final() && told[rank] && only.is_none() => left = Some(error),
                        Err(error) => {
                            told[rank] = error.is_final();
                            return Err(error);
                        }
                    }
                }
                let now = sys::coarse_milliseconds();
                if only.is_none() && lookout.is_old(now) {
                    let unmet = || (0..size).filter(|rank| links[*rank].is_none());
                    let is_known = door.knows_any(unmet());
                    let sight = if is_known { lookout.look(door, unmet(), now) } else { None };
                    for rank in sight.iter().flat_map(|_| unmet()) {
                        let end = sight.and_then(|sight| door.end(sight, rank));
                        let Some(error) = end else { continue };
                        if !core::mem::replace(&mut told[rank], true) {
                            return Err(error);
                        }
                        left = Some(error);
                    }
                }
                let all_told = (0..size).all(|rank| rank == *me || told[rank]);
                match left {
                    Some(error) if all_told => Err(error),
                    _ if door.has_news() => Ok(Some(None)),
                    _ => Ok(None),
                }
            })?;
            if let Some((rank, received)) = found {
                self.next = (rank + 1) % size;
                return Ok((rank, received));
            }
        }
    }
}
