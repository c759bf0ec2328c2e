//! What lies behind the slots of a ledger: statistics, then the flight recorder.

use super::layout::{HEADER_SIZE, MAX_SLOTS, Slot};
use super::ring::Shape;
use super::statistics;

const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();

/// Where everything is in a ledger that has so many slots, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Areas {
    pub statistics: usize,
    pub events: usize,
    pub size: usize,
}

impl Areas {
    pub(crate) const fn new(slots: u32, events: Shape) -> Self {
        let statistics = (HEADER_SIZE + slots as usize * size_of::<Slot>()).next_multiple_of(PAGE);
        let begin = (statistics + statistics::SIZE * WORD).next_multiple_of(64);
        Self { statistics, events: begin, size: (begin + events.size() * WORD).next_multiple_of(PAGE) }
    }

    /// As many slots as fit into a file of `limit` bytes, `slots` at most.
    pub(crate) fn fit(slots: u32, events: Shape, limit: u64) -> Option<u32> {
        let room = limit.checked_sub(Self::new(0, events).size as u64)? / size_of::<Slot>() as u64;
        // Rounding up to pages takes less than one.
        let most = room.saturating_sub((PAGE / size_of::<Slot>()) as u64);
        Some(slots.min(MAX_SLOTS).min(u32::try_from(most).unwrap_or(u32::MAX)))
    }

    /// Bytes behind the slots.
    pub(crate) const fn behind_slots(self) -> usize {
        self.size - self.statistics
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::PRODUCER_EVENTS;
    use super::*;

    #[test]
    fn areas_do_not_overlap_and_fit() {
        for limit in (0..2 << 20).step_by(1000).chain([u64::MAX]) {
            let Some(slots) = Areas::fit(MAX_SLOTS, PRODUCER_EVENTS, limit) else {
                assert!(limit < 200_000);
                continue;
            };
            let areas = Areas::new(slots, PRODUCER_EVENTS);
            assert!(slots <= MAX_SLOTS && areas.size as u64 <= limit, "{limit}");
            assert!(areas.statistics >= HEADER_SIZE + slots as usize * 64);
            assert!(areas.events >= areas.statistics + statistics::SIZE * 8);
            assert!(areas.size >= areas.events + PRODUCER_EVENTS.size() * 8);
        }
        assert_eq!(Areas::fit(100, PRODUCER_EVENTS, u64::MAX), Some(100));
        assert_eq!(Areas::fit(u32::MAX, PRODUCER_EVENTS, u64::MAX), Some(MAX_SLOTS));
    }
}
