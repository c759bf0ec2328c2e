//! What a sender does for a message that it offered: fills bounce buffers, or copies from its end of the message.

use core::sync::atomic::Ordering;

use umf_core::Access;
use umf_core::step::{Step, step};
use umf_ipc::Mapping;

use super::outgoing::Place;
use crate::board::{self, Told};
use crate::layout::{CHUNK, CHUNKS};
use crate::offer::{self, BOUNCE, PUSH};
use crate::parts::{Cursor, List};
use crate::protocol::{self, Claim, End, MOST_CHUNKS};
use crate::shared::Shared;
use crate::sys::{self, Direction, Iov};
use crate::{LinkStatistics, Result};

/// Said in place of a count by a sender that cannot copy what it claimed.
pub(crate) const FAILED: u64 = (1 << 48) - 1;

/// What was done of what the receiver asks for.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    /// Which one of the receiver's; 0 is none.
    epoch: u16,
    /// Chunks that were filled or copied.
    count: u64,
    push: Option<Push>,
}

#[derive(Debug)]
struct Push {
    chunk: usize,
    /// None, if the receiver is to do all of it.
    to: Option<To>,
}

#[derive(Debug)]
enum To {
    Mapped(Mapping<'static>, usize),
    Address(u64),
}

impl Attempt {
    /// Does what the receiver asks for, as far as that is possible now.
    pub(super) fn serve(
        &mut self,
        shared: &Shared,
        place: Place,
        list: &List<'_>,
        statistics: &mut LinkStatistics,
    ) -> Result<()> {
        let request = shared.word(shared.me.request(place.index)).load(Ordering::Acquire);
        let epoch = (request >> 48) as u16;
        if request as u32 != place.number || epoch == 0 {
            return Ok(());
        }
        if epoch != self.epoch {
            *self = Self { epoch, count: 0, push: None };
        }
        match (request >> 32) as u8 {
            BOUNCE => self.fill(shared, place, list, statistics),
            PUSH => {
                self.push(shared, place, list, statistics);
                Ok(())
            }
            _ => Err(shared.misbehaved("it asks for what there is not")),
        }
    }

    fn say(&self, shared: &Shared, place: Place, count: u64) {
        shared
            .word(shared.me.progress(place.index))
            .store(offer::progress(self.epoch, count), Ordering::Release);
    }

    fn fill(
        &mut self,
        shared: &Shared,
        place: Place,
        list: &List<'_>,
        statistics: &mut LinkStatistics,
    ) -> Result<()> {
        let all = list.len().div_ceil(CHUNK) as u64;
        // Acquire: what was there is read before it is overwritten.
        let emptied = shared.word(shared.me.argument(place.index, 0)).load(Ordering::Acquire);
        if emptied > self.count {
            return Err(shared.misbehaved("it says to have emptied buffers that were not filled"));
        }
        if self.count == all || self.count == emptied + CHUNKS {
            return Ok(());
        }
        let time = list.touch(Access::ReadOnly)?;
        while self.count < all && self.count < emptied + CHUNKS {
            let start = self.count as usize * CHUNK;
            let length = CHUNK.min(list.len() - start);
            let to = shared.segment.bytes(shared.me.chunk(self.count), length);
            // SAFETY: the caller's memory, borrowed by the list; a chunk that the receiver has emptied.
            unsafe { Cursor::at(list.parts(), start).copy_out(to.as_ptr(), length) };
            self.count += 1;
            self.say(shared, place, self.count);
            step(Step::LinkFilled);
            statistics.bounced.add(length);
            shared.notify();
        }
        drop(time);
        Ok(())
    }

    fn push(&mut self, shared: &Shared, place: Place, list: &List<'_>, statistics: &mut LinkStatistics) {
        let [from] = *list.parts() else { return };
        let push = match self.push.take() {
            Some(push) => push,
            None => target(shared, place, from.length, statistics),
        };
        let claims = shared.word(shared.me.claims(place.index));
        let chunks = from.length.div_ceil(push.chunk) as u64;
        let before = self.count;
        if let Some(to) = &push.to {
            while let Claim::Chunk(chunk) = protocol::claim(claims, self.epoch, chunks, End::Back, self.count)
            {
                let start = chunk as usize * push.chunk;
                let length = push.chunk.min(from.length - start);
                let source = from.base.wrapping_add(start);
                // Told that it is touched for each: nobody else does anything then.
                let time = list.touch(Access::ReadOnly);
                if time.is_err() || !copy(shared, source, to, start, length) {
                    // What is claimed cannot be given back: the receiver begins again, alone.
                    self.say(shared, place, FAILED);
                    shared.cma.store(false, Ordering::Relaxed);
                    statistics.refused_cma += 1;
                    break;
                }
                self.count += 1;
                self.say(shared, place, self.count);
                step(Step::LinkPushed);
                statistics.pushed.add(length);
            }
        }
        if self.count != before {
            shared.notify();
        }
        self.push = Some(push);
    }
}

/// What the receiver says of its memory, checked.
fn target(shared: &Shared, place: Place, length: usize, statistics: &mut LinkStatistics) -> Push {
    let argument = |number| shared.word(shared.me.argument(place.index, number)).load(Ordering::Relaxed);
    let (told, offset, chunk) = (Told::from_word(argument(0)), argument(1), argument(2));
    let chunk = usize::try_from(chunk).unwrap_or(0);
    let is_possible = chunk >= 4096 && (length.div_ceil(chunk.max(1)) as u64) <= MOST_CHUNKS;
    let to = match told {
        _ if !is_possible => None,
        Some(told) => {
            let to = open(shared, told, offset, length);
            statistics.refused_mapped += u64::from(to.is_none());
            to
        }
        None => {
            let fits = offset.checked_add(length as u64).is_some();
            (fits && shared.cma.load(Ordering::Relaxed)).then_some(To::Address(offset))
        }
    };
    Push { chunk: chunk.max(4096), to }
}

fn open(shared: &Shared, told: Told, offset: u64, length: usize) -> Option<To> {
    let handle = board::read(&shared.segment, shared.other(), told)?;
    let mapping = shared.importer?.open_bytes(handle.as_bytes(), Access::ReadWrite).ok()?;
    let offset = usize::try_from(offset).ok()?;
    let fits = offset.checked_add(length).is_some_and(|end| end <= mapping.len());
    (fits && mapping.is_host_accessible()).then_some(To::Mapped(mapping, offset))
}

/// Copies into the receiver's memory.
fn copy(shared: &Shared, from: *mut u8, to: &To, start: usize, length: usize) -> bool {
    match to {
        To::Mapped(mapping, offset) => {
            let (Some(base), Ok(time)) = (mapping.address().as_ptr(), mapping.cpu_access(Access::ReadWrite))
            else {
                return false;
            };
            // SAFETY: `open` has looked whether all of the message fits; the mapping can be written, and lives. `from` is the
            // caller's memory.
            unsafe { core::ptr::copy(from, base.wrapping_add(offset + start), length) };
            time.end().is_ok()
        }
        To::Address(address) => {
            let local = [Iov { address: from.expose_provenance() as u64, length: length as u64 }];
            let remote = [Iov { address: address + start as u64, length: length as u64 }];
            // SAFETY: `from` is the caller's memory; the pid is that of the peer, which was there a moment ago.
            unsafe { sys::across(shared.pid, Direction::Write, &local, &remote) }.is_ok()
        }
    }
}
