//! Combining what the kernel reads out of the sender: the one copy goes into a buffer that stays in this processor's cache.

use super::incoming::Incoming;
use super::pull::Pulled;
use umf_ipc::Access;

use crate::offer::Offer;
use crate::parts::{List, Part};
use crate::ranges::part_of;
use crate::shared::Shared;
use crate::sys::{self, Direction};
use crate::{Engine, Error, Result};

/// Bytes that are read at a time: so many that calls cost little, and so few that a processor's second cache has them still.
const STAGE: usize = 128 << 10;

impl Incoming {
    /// As [`Incoming::by_address`], into memory that is combined with what comes.
    pub(super) fn combine_by_address(
        &mut self,
        shared: &Shared,
        id: u64,
        offer: &Offer,
        into: &List<'_>,
    ) -> Result<Pulled> {
        let mut stage = core::mem::take(&mut self.stage);
        stage.resize(STAGE.min(offer.length.max(stage.len())), 0);
        let _time = into.touch(Access::ReadWrite)?;
        let mut to = into.cursor();
        let mut at = 0;
        while at < offer.length {
            let length = stage.len().min(offer.length - at);
            let local = [Part { base: stage.as_mut_ptr(), length }.iov()];
            let remote = part_of(offer.ranges.as_slice(), at as u64, length as u64);
            // SAFETY: the stage has as many bytes; the pid is that of the peer, which was there a moment ago.
            if let Err(errno) = unsafe { sys::across(shared.pid, Direction::Read, &local, &remote) } {
                self.stage = stage;
                return Err(match shared.refused(errno, "process_vm_readv") {
                    // Nothing was combined, and other engines may do it.
                    error if at == 0 || error.is_final() => error,
                    _ => Error::Spoilt { why: "its memory cannot be read any more" },
                });
            }
            // SAFETY: the caller's memory, which has all of the message; the stage is this receiver's. A stage is whole numbers.
            unsafe { to.copy_in(stage.as_ptr(), length) };
            at += length;
        }
        self.stage = stage;
        Ok(self.end(shared, id, offer, Engine::Cma))
    }
}
