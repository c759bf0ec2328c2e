//! What a sender does for a message that it offered: fills bounce buffers, or copies from its end of the message.

use core::sync::atomic::Ordering;

use umf_core::Access;
use umf_ipc::Mapping;
use umf_sync::failpoint;

use super::outgoing::Place;
use crate::board::{self, Told};
use crate::layout::{self, CHUNK, CHUNKS, MOST_RANGES, RECEIVING};
use crate::offer::{self, BOUNCE, PUSH};
use crate::parts::{Cursor, List};
use crate::protocol::{self, Claim, Load, MOST_CHUNKS};
use crate::ranges::part_of;
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
    /// Ranges of a mapping of the receiver's memory.
    Mapped(Mapping<'static>, Vec<Iov>),
    /// Of the receiver.
    Address(Vec<Iov>),
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
        let request = shared.theirs.word(layout::request(place.index)).load(Ordering::Acquire);
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
        let progress = offer::progress(self.epoch, count);
        shared.mine.word(layout::progress(place.index)).store(progress, Ordering::Release);
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
        let emptied = shared.theirs.word(layout::argument(place.index, 0)).load(Ordering::Acquire);
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
            shared.populate((layout::chunk(self.count), length))?;
            let to = shared.mine.bytes(layout::chunk(self.count), length);
            // SAFETY: the caller's memory, borrowed by the list; a chunk that the receiver has emptied.
            unsafe { Cursor::at(list.parts(), start).copy_out(to.as_ptr(), length) };
            self.count += 1;
            self.say(shared, place, self.count);
            failpoint!("link.filled");
            statistics.bounced.add(length);
            shared.notify();
        }
        drop(time);
        Ok(())
    }

    fn push(&mut self, shared: &Shared, place: Place, list: &List<'_>, statistics: &mut LinkStatistics) {
        let push = match self.push.take() {
            Some(push) => push,
            None => target(shared, place, list.len(), statistics),
        };
        let (back, front) =
            (shared.mine.word(layout::back(place.index)), shared.theirs.word(layout::front(place.index)));
        let chunks = list.len().div_ceil(push.chunk) as u64;
        let before = self.count;
        if let Some(to) = &push.to {
            loop {
                let chunk = match protocol::claim_back(back, &front, self.epoch, chunks, self.count) {
                    Claim::Chunk(chunk) => chunk,
                    Claim::Theirs => {
                        self.count += 1;
                        self.say(shared, place, self.count);
                        break;
                    }
                    Claim::None => break,
                };
                let start = chunk as usize * push.chunk;
                let length = push.chunk.min(list.len() - start);
                // Told that it is touched for each: nobody else does anything then.
                let time = list.touch(Access::ReadOnly);
                if time.is_err() || !copy(shared, list, to, start, length) {
                    // What is claimed cannot be given back: the receiver begins again, alone.
                    self.say(shared, place, FAILED);
                    shared.cma.store(false, Ordering::Relaxed);
                    statistics.refused_cma += 1;
                    break;
                }
                self.count += 1;
                self.say(shared, place, self.count);
                failpoint!("link.pushed");
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
    let argument = |number| shared.theirs.word(layout::argument(place.index, number)).load(Ordering::Relaxed);
    let told = Told::from_word(argument(0));
    let chunk = usize::try_from(argument(2)).unwrap_or(0);
    let is_possible = chunk >= 4096 && (length.div_ceil(chunk.max(1)) as u64) <= MOST_CHUNKS;
    let ranges = ranges(shared, argument(1), argument(3), length as u64).filter(|_| is_possible);
    let to = match (told, ranges) {
        (_, None) => None,
        (Some(told), Some(ranges)) => {
            let to = open(shared, told, ranges);
            statistics.refused_mapped += u64::from(to.is_none());
            to
        }
        (None, Some(ranges)) => shared.cma.load(Ordering::Relaxed).then_some(To::Address(ranges)),
    };
    Push { chunk: chunk.max(4096), to }
}

/// Where the receiver says that the message goes: at `place`, or in so many ranges. None if these are not as long as it, or where
/// nothing can be.
fn ranges(shared: &Shared, place: u64, count: u64, length: u64) -> Option<Vec<Iov>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST_RANGES)?;
    let list = if count == 0 {
        vec![Iov { address: place, length }]
    } else {
        shared.populate_theirs(RECEIVING).ok()?;
        let word = |at| shared.theirs.word(at).load(Ordering::Relaxed);
        let range = layout::into_range;
        (0..count).map(|index| Iov { address: word(range(index)), length: word(range(index) + 8) }).collect()
    };
    let is_there = |range: &Iov| range.address.checked_add(range.length).is_some();
    let add = |sum: u64, range: &Iov| sum.checked_add(range.length).filter(|_| is_there(range));
    (list.iter().try_fold(0, add) == Some(length)).then_some(list)
}

fn open(shared: &Shared, told: Told, ranges: Vec<Iov>) -> Option<To> {
    let handle = board::read(shared, told)?;
    let mapping = shared.importer?.open_bytes(handle.as_bytes(), Access::ReadWrite).ok()?;
    let fits = ranges.iter().all(|range| range.address + range.length <= mapping.len() as u64);
    (fits && mapping.is_host_accessible()).then_some(To::Mapped(mapping, ranges))
}

/// Copies into the receiver's memory.
fn copy(shared: &Shared, list: &List<'_>, to: &To, start: usize, length: usize) -> bool {
    let mut from = Cursor::at(list.parts(), start);
    match to {
        To::Mapped(mapping, ranges) => {
            let (Some(base), Ok(time)) = (mapping.address().as_ptr(), mapping.cpu_access(Access::ReadWrite))
            else {
                return false;
            };
            for range in part_of(ranges, start as u64, length as u64) {
                let to = base.wrapping_add(range.address as usize);
                // SAFETY: `open` has looked whether all of the message fits; the mapping can be written, and lives. `from` is the
                // caller's memory.
                unsafe { from.copy_out(to, range.length as usize) };
            }
            time.end().is_ok()
        }
        To::Address(ranges) => {
            let (local, remote) = (from.ranges(length), part_of(ranges, start as u64, length as u64));
            // SAFETY: `from` is the caller's memory; the pid is that of the peer, which was there a moment ago.
            unsafe { sys::across(shared.pid, Direction::Write, &local, &remote) }.is_ok()
        }
    }
}
