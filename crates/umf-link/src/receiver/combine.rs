//! Combining what the kernel reads out of the sender: the one copy goes into a buffer that stays in this processor's cache.

use super::incoming::Incoming;
use super::pull::Pulled;
use umf_ipc::Access;

use crate::offer::Offer;
use crate::parts::{List, Part};
use crate::shared::Shared;
use crate::sys::{self, Direction, Iov};
use crate::{Engine, Error, Result};

/// Bytes that are read at a time: so many that calls cost little, and so few that a processor's second cache has them still.
const STAGE: usize = 128 << 10;

/// The ranges that bytes `from` to `from + length` of a list are.
fn ranges_of(list: &[Iov], from: u64, length: u64) -> Vec<Iov> {
    let (mut ranges, mut at) = (Vec::new(), 0_u64);
    for range in list {
        let (start, end) = (from.max(at), (from + length).min(at + range.length));
        if start < end {
            ranges.push(Iov { address: range.address + (start - at), length: end - start });
        }
        at += range.length;
    }
    ranges
}

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
            let remote = ranges_of(offer.ranges.as_slice(), at as u64, length as u64);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_part_of_a_list(lengths in prop::collection::vec(0..20_u64, 0..10), from in 0..100_u64, length in 0..100_u64) {
            let mut list = Vec::new();
            let mut bytes = Vec::new();
            for (number, length) in lengths.into_iter().enumerate() {
                let address = 1000 * number as u64;
                list.push(Iov { address, length });
                bytes.extend(address..address + length);
            }
            let all = bytes.len() as u64;
            let from = from.min(all);
            let length = length.min(all - from);
            let found: Vec<u64> = ranges_of(&list, from, length)
                .into_iter()
                .flat_map(|range| range.address..range.address + range.length)
                .collect();
            prop_assert_eq!(&found[..], &bytes[from as usize..(from + length) as usize]);
        }
    }
}
