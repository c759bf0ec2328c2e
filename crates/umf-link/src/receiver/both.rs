//! Both sides copy one message: the receiver from the front, the sender from the back.

use core::sync::atomic::Ordering;

use umf_core::Access;
use umf_core::step::{Step, step};
use umf_ipc::Mapping;

use super::incoming::Incoming;
use super::pull::{Pulled, is_withdrawn};
use crate::board::Told;
use crate::offer::{self, Offer, PUSH};
use crate::parts::{List, Part};
use crate::protocol::{self, Claim, End};
use crate::sender::FAILED;
use crate::shared::Shared;
use crate::sys::{self, Direction, Iov};
use crate::wait::{Limit, wait};
use crate::{Engine, Result};

/// Where this side copies from.
#[derive(Clone, Copy, Debug)]
pub(super) enum From<'m> {
    /// A mapping of the sender's memory, and where the message begins in it.
    Mapped(&'m Mapping<'static>, *const u8),
    /// The sender.
    Address(u64),
}

/// How much is claimed at a time: enough that claiming costs nothing, and so little that both end at about the same time.
fn chunk_size(length: usize) -> usize {
    (length / 32).clamp(16 << 10, 256 << 10).next_multiple_of(4096)
}

impl Incoming {
    /// Fetches a message that is in one piece, if `into` is in one that the sender can get at, too; otherwise `None`. Also if it
    /// turns out that it cannot: then nothing was received yet.
    pub(super) fn by_both(
        &mut self,
        shared: &Shared,
        (id, offer): (u64, &Offer),
        into: &List<'_>,
        from: From<'_>,
        mut limit: Limit,
    ) -> Result<Option<Pulled>> {
        let ([to], None) = (into.parts(), into.reduction()) else { return Ok(None) };
        // The sender would be shown where to write, and could write beside it.
        if shared.settings.enforce {
            return Ok(None);
        }
        let (told, place) = match into.memory() {
            Some(memory) => {
                let told = self.board.tell(&shared.segment, shared.me, memory);
                (told, (to.base.addr() - memory.base().addr()) as u64)
            }
            // Private memory is shown only as long as this call lasts, which is until the sender is done.
            None if limit.is_none() && offer.by_address => (None, to.iov().address),
            None => return Ok(None),
        };
        if into.memory().is_some() && told.is_none() {
            return Ok(None);
        }
        let (sender, epoch) = (shared.other(), self.next_epoch());
        let chunk = chunk_size(offer.length);
        let chunks = offer.length.div_ceil(chunk) as u64;
        let claims = shared.word(sender.claims(offer.index));
        claims.store(protocol::claims(epoch, 0, 0), Ordering::Relaxed);
        for (number, value) in [told.map_or(0, Told::to_word), place, chunk as u64].into_iter().enumerate() {
            shared.word(sender.argument(offer.index, number)).store(value, Ordering::Relaxed);
        }
        let request = shared.word(sender.request(offer.index));
        request.store(offer::request(offer.number, PUSH, epoch), Ordering::Release);
        step(Step::LinkPushAsked);
        shared.notify();
        let mut mine = 0;
        let others = loop {
            match protocol::claim(claims, epoch, chunks, End::Front, mine) {
                Claim::Chunk(number) => {
                    let start = number as usize * chunk;
                    let length = chunk.min(offer.length - start);
                    let to = Part { base: to.base.wrapping_add(start), length };
                    // Told that it is touched for each: nobody else does anything then.
                    let time = into.touch(Access::ReadWrite);
                    if let Err(error) = time.and_then(|_time| copy(shared, from, start, to)) {
                        self.close(shared, offer, epoch, limit);
                        return Err(error);
                    }
                    mine += 1;
                    step(Step::LinkPulled);
                }
                Claim::None { others } => break others,
                Claim::Over => return Err(shared.misbehaved("it claims what is not its own")),
            }
        };
        let done = shared.word(sender.progress(offer.index));
        let (expected, failed) = (offer::progress(epoch, others), offer::progress(epoch, FAILED));
        let waited = if others == 0 {
            Ok(true)
        } else {
            wait(shared, &mut self.pulse, &mut limit, "the peer's part of a message", |_| {
                let now = done.load(Ordering::Acquire);
                let is_over = now == failed || is_withdrawn(shared, offer);
                Ok(if now == expected { Some(true) } else { is_over.then_some(false) })
            })
        };
        match waited {
            Ok(true) => Ok(Some(self.end(shared, id, offer, Engine::Both))),
            Ok(false) => {
                self.close(shared, offer, epoch, limit);
                Ok(None)
            }
            Err(error) => {
                self.close(shared, offer, epoch, limit);
                Err(error)
            }
        }
    }

    /// Nobody claims anything of this attempt any more, and what the sender has claimed it has copied; but for memory of a
    /// pool in a call with a timeout, which it may write after that.
    fn close(&mut self, shared: &Shared, offer: &Offer, epoch: u16, limit: Limit) {
        let next = self.next_epoch();
        let sender = shared.other();
        shared.word(sender.request(offer.index)).store(0, Ordering::Relaxed);
        let claims = shared.word(sender.claims(offer.index));
        let claimed = claims.swap(protocol::claims(next, 0, 0), Ordering::AcqRel) & ((1 << 24) - 1);
        if !limit.is_none() || claimed == 0 {
            return;
        }
        let done = shared.word(sender.progress(offer.index));
        let ends = [offer::progress(epoch, claimed), offer::progress(epoch, FAILED)];
        // If that fails, nobody is there who would copy.
        let _ = wait(shared, &mut self.pulse, &mut Limit::new(None), "the peer's part of a message", |_| {
            Ok(ends.contains(&done.load(Ordering::Acquire)).then_some(()))
        });
    }
}

fn copy(shared: &Shared, from: From<'_>, start: usize, to: Part) -> Result<()> {
    match from {
        From::Mapped(mapping, base) => {
            let _time = mapping.cpu_access(Access::ReadOnly).map_err(|error| shared.not_opened(error))?;
            // SAFETY: the mapping has all of the message, and the caller's memory, too.
            unsafe { core::ptr::copy(base.wrapping_add(start), to.base, to.length) };
            Ok(())
        }
        From::Address(address) => {
            let remote = [Iov { address: address + start as u64, length: to.length as u64 }];
            // SAFETY: the caller's memory; the pid is that of the peer, which was there a moment ago.
            unsafe { sys::across(shared.pid, Direction::Read, &[to.iov()], &remote) }
                .map_err(|errno| shared.refused(errno, "process_vm_readv"))
        }
    }
}
