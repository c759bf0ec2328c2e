//! Offsets in the files of shared memory. `docs/link.md` has the tables.
//!
//! | file | written by | mapped by | holds |
//! |---|---|---|---|
//! | lane | one process, for one peer | both | its records to that peer, and its answers |
//! | catalog | one process | all its peers | its handle table and its registered ranges |
//! | bell | all peers | all its peers | the futex on which its threads sleep |
//!
//! The first page of a lane holds all that short messages need. Other parts are populated at first
//! use.

/// "UMFLANE" and the version of the layout of lanes.
pub(crate) const LANE_MAGIC: u64 = u64::from_le_bytes(*b"UMFLANE\x02");
/// "UMFCTLG" and the version of the layout of catalogs.
pub(crate) const CATALOG_MAGIC: u64 = u64::from_le_bytes(*b"UMFCTLG\x01");

pub(crate) const PAGE: usize = 4096;
/// Two cache lines: processors fetch them in pairs.
pub(crate) const LINE: usize = 128;

/// Bytes of a slot of a ring, its header included.
pub(crate) const SLOT: usize = 256;
/// Offset of the payload in the first slot of a record (header, tag) and in further ones (header).
pub(crate) const FIRST: usize = 16;
pub(crate) const NEXT: usize = 8;
pub(crate) const FIRST_PAYLOAD: usize = SLOT - FIRST;
pub(crate) const NEXT_PAYLOAD: usize = SLOT - NEXT;
/// Largest payload of a record.
pub(crate) const MAX_INLINE: usize = 32 << 10;

/// The most messages that are offered to one peer at a time. Beyond them, a message can be stuck
/// behind others that its receiver does not receive yet.
pub(crate) const OFFERS: usize = 4096;
/// The most blocks that are handed over to one peer at a time.
pub(crate) const MAX_LOANS: usize = u64::BITS as usize;
/// Entries of the handle table of a process.
pub(crate) const HANDLES: usize = 256;
/// The most ranges that a process has registered.
pub(crate) const RANGES: usize = 1024;
/// Chunks of the bounce area of a lane, and bytes of each.
pub(crate) const CHUNKS: u64 = 8;
pub(crate) const CHUNK: usize = 32 << 10;
/// The most requests to one peer without an answer, and the most bytes of one.
pub(crate) const REQUESTS: u64 = 4;
pub(crate) const REQUEST_BYTES: usize = 16 << 10;
/// The most ranges of an offer.
pub(crate) const MAX_RANGES: usize = 1024;

// First page of lanes and catalogs.
pub(crate) const MAGIC: usize = 0;
pub(crate) const NONCE: [usize; 2] = [16, 24];

// First page of a lane.
/// Not 0 once the process of the lane has closed the link.
pub(crate) const CLOSED: usize = LINE;
/// The number plus one of the processor on which the process last spun; 0 for none.
pub(crate) const PROCESSOR: usize = LINE + 8;
/// How often the process has asked to be woken by the socket.
pub(crate) const ARMED: usize = LINE + 16;
/// Not 0 once the process has ended its collectives: bit 32, and the pid whose end was the reason.
pub(crate) const ENDED_COLLECTIVES: usize = LINE + 24;
/// Not 0 while the process waits for free slots of its ring.
pub(crate) const WANTS_SPACE: usize = LINE + 32;
/// Slots of the peer's lane that the process has consumed. Updated after each quarter of the ring.
pub(crate) const CONSUMED: usize = 2 * LINE;
/// One bit for each block that the peer has handed over. Flipped when the block is returned.
pub(crate) const RETURNED: usize = 3 * LINE;
/// The slot plus one of the registered range of the peer in which the process is copying.
pub(crate) const INSIDE: usize = 3 * LINE + 8;

// First page of a catalog.
/// Not 0 while the process asks for announcements instead of data.
pub(crate) const ANNOUNCE_ONLY: usize = LINE;

// The page of a bell, in words of 32 bits. The first one is the futex.
/// Not 0 if peers have to mark their lanes.
pub(crate) const HAS_MARKS: usize = 1;
/// The first word of marks, one bit for each lane.
pub(crate) const MARKS: usize = LINE / 4;
/// Words of marks.
pub(crate) const MARK_WORDS: usize = 32;

/// The two rings of a lane. A sender starts in the small one and moves to the large one when that
/// is too small. Slot numbers go on from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    Small,
    Large,
}

impl Ring {
    pub(crate) const fn slots(self) -> u64 {
        match self {
            Self::Small => 14,
            Self::Large => 256,
        }
    }

    /// The slots that a receiver consumes before it publishes its progress. Even if up to so many
    /// are not published, an empty ring has enough known free slots for any record.
    pub(crate) const fn quarter(self) -> u64 {
        self.slots() / 4
    }

    /// Largest payload of a record.
    pub(crate) const fn longest(self) -> usize {
        match self {
            Self::Small => 1 << 10,
            Self::Large => MAX_INLINE,
        }
    }

    const fn offset(self) -> usize {
        match self {
            Self::Small => 4 * LINE,
            Self::Large => PAGE,
        }
    }

    const fn size(self) -> usize {
        self.slots() as usize * SLOT
    }

    /// Returns the offset of slot `number`.
    #[inline(always)]
    pub(crate) const fn slot(self, number: u64) -> usize {
        // A division by a constant compiles to a multiplication.
        match self {
            Self::Small => Self::Small.offset() + (number % Self::Small.slots()) as usize * SLOT,
            Self::Large => Self::Large.offset() + (number % Self::Large.slots()) as usize * SLOT,
        }
    }
}

/// Returns how many slots a record with this much payload takes.
pub(crate) const fn slots(length: usize) -> u64 {
    1 + length.saturating_sub(FIRST_PAYLOAD).div_ceil(NEXT_PAYLOAD) as u64
}

const OFFER: usize = Ring::Large.offset() + Ring::Large.size();
const ACCEPT: usize = OFFER + OFFERS * LINE;
const BOUNCE: usize = ACCEPT + OFFERS * LINE;
const ANSWER: usize = BOUNCE + CHUNK * CHUNKS as usize;
const ANSWER_SIZE: usize = LINE + REQUEST_BYTES;
/// Bytes of a lane.
pub(crate) const LANE: usize = (ANSWER + ANSWER_SIZE * REQUESTS as usize).next_multiple_of(PAGE);

/// Bytes of a file that are populated together: offset and length.
pub(crate) type Extent = (usize, usize);

pub(crate) const LARGE_RING: Extent = (Ring::Large.offset(), Ring::Large.size());
pub(crate) const ANSWERS: Extent = (ANSWER, ANSWER_SIZE * REQUESTS as usize);

/// Returns the line of an offer that its sender writes.
pub(crate) const fn offer_line(index: usize) -> Extent {
    (OFFER + (index % OFFERS) * LINE, LINE)
}

/// Returns the line of an offer of the peer that its receiver writes.
pub(crate) const fn accept_line(index: usize) -> Extent {
    (ACCEPT + (index % OFFERS) * LINE, LINE)
}

/// Returns the word with number and state of an offer.
pub(crate) const fn offered(index: usize) -> usize {
    offer_line(index).0
}

/// Returns the word with the number of chunks that the sender has filled or copied.
pub(crate) const fn progress(index: usize) -> usize {
    offered(index) + 8
}

/// Returns the word with the number of chunks that the sender has claimed, from the back.
pub(crate) const fn back(index: usize) -> usize {
    offered(index) + 16
}

/// Returns the word with the receiver's state of an offer.
pub(crate) const fn taken(index: usize) -> usize {
    accept_line(index).0
}

/// Returns the word with the number of chunks that the receiver has claimed, from the front.
pub(crate) const fn front(index: usize) -> usize {
    taken(index) + 8
}

/// Returns the word with the receiver's request to the sender.
pub(crate) const fn request(index: usize) -> usize {
    taken(index) + 16
}

/// Returns argument `number` (0 to 2) of the request.
pub(crate) const fn argument(index: usize, number: usize) -> usize {
    request(index) + 8 * (number % 3 + 1)
}

/// Returns the word with the number of chunks that the receiver has emptied.
pub(crate) const fn emptied(index: usize) -> usize {
    request(index) + 32
}

/// Returns a chunk of the bounce area.
pub(crate) const fn chunk(number: u64) -> usize {
    BOUNCE + (number % CHUNKS) as usize * CHUNK
}

/// Returns the word with the answer to request `number` of the peer.
pub(crate) const fn answer(number: u64) -> usize {
    ANSWER + (number % REQUESTS) as usize * ANSWER_SIZE
}

/// Returns the bytes of the answer to request `number`.
pub(crate) const fn answer_bytes(number: u64) -> usize {
    answer(number) + LINE
}

const GENERATION: usize = PAGE / 2;
const HANDLE: usize = PAGE;
const RANGE: usize = HANDLE + HANDLES * umf_ipc::HANDLE_SIZE;
/// A line of words and a handle.
const RANGE_SIZE: usize = 64 + umf_ipc::HANDLE_SIZE;
/// Bytes of a catalog.
pub(crate) const CATALOG: usize = (RANGE + RANGE_SIZE * RANGES).next_multiple_of(PAGE);

/// Returns the word with the generation of an entry of the handle table: odd while it is written.
pub(crate) const fn generation(index: usize) -> usize {
    GENERATION + (index % HANDLES) * 8
}

/// Returns the handle of an entry.
pub(crate) const fn handle(index: usize) -> Extent {
    (HANDLE + (index % HANDLES) * umf_ipc::HANDLE_SIZE, umf_ipc::HANDLE_SIZE)
}

/// Returns the words of a registered range. The first is its generation, or 0 for none.
pub(crate) const fn range(slot: usize) -> Extent {
    (RANGE + (slot % RANGES) * RANGE_SIZE, RANGE_SIZE)
}

/// Returns word `number` (0 to 3) of a range: address, length, flags, offset in the memory of the
/// handle.
pub(crate) const fn range_word(slot: usize, number: usize) -> usize {
    range(slot).0 + 8 * (number % 4 + 1)
}

/// Returns the handle of the memory in which a range lies.
pub(crate) const fn range_handle(slot: usize) -> usize {
    range(slot).0 + 64
}

const _: () = assert!(slots(Ring::Large.longest()) + Ring::Large.quarter() < Ring::Large.slots());
const _: () = assert!(slots(Ring::Small.longest()) + 1 + Ring::Small.quarter() < Ring::Small.slots());
const _: () = assert!(Ring::Small.offset() + Ring::Small.size() == PAGE);
const _: () = assert!(OFFER.is_multiple_of(PAGE) && GENERATION + 8 * HANDLES == PAGE);
const _: () = assert!(RANGE_SIZE.is_multiple_of(64) && OFFERS <= 1 << 12 && HANDLES > MAX_LOANS);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut extents: Vec<Extent>, size: usize) {
        extents.sort_unstable();
        assert!(extents.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(extents.iter().all(|(start, length)| start.is_multiple_of(8) && start + length <= size));
    }

    #[test]
    fn parts_of_lane_do_not_overlap() {
        let words =
            [MAGIC, NONCE[0], NONCE[1], CLOSED, PROCESSOR, ARMED, ENDED_COLLECTIVES, CONSUMED, RETURNED];
        let mut extents: Vec<Extent> = words.map(|word| (word, 8)).into();
        extents.extend([(INSIDE, 8), (WANTS_SPACE, 8)]);
        for ring in [Ring::Small, Ring::Large] {
            extents.extend((0..ring.slots()).map(|number| (ring.slot(number), SLOT)));
        }
        for index in 0..OFFERS {
            let words =
                [offered(index), progress(index), back(index), taken(index), front(index), request(index)];
            extents.extend(words.map(|word| (word, 8)));
            extents.extend((0..3).map(|number| (argument(index, number), 8)));
            extents.push((emptied(index), 8));
        }
        extents.extend((0..CHUNKS).map(|number| (chunk(number), CHUNK)));
        for number in 0..REQUESTS {
            extents.extend([(answer(number), 8), (answer_bytes(number), REQUEST_BYTES)]);
        }
        check(extents, LANE);
    }

    #[test]
    fn parts_of_catalog_do_not_overlap() {
        let mut extents: Vec<Extent> =
            [MAGIC, NONCE[0], NONCE[1], ANNOUNCE_ONLY].map(|word| (word, 8)).into();
        for index in 0..HANDLES {
            extents.extend([(generation(index), 8), handle(index)]);
        }
        for slot in 0..RANGES {
            extents.push((range(slot).0, 8));
            extents.extend((0..4).map(|number| (range_word(slot, number), 8)));
            extents.push((range_handle(slot), umf_ipc::HANDLE_SIZE));
        }
        check(extents, CATALOG);
    }

    #[test]
    fn offsets_of_hostile_numbers_stay_in_bounds() {
        for number in [u64::MAX, 1 << 63] {
            let index = number as usize;
            assert!(Ring::Small.slot(number) + SLOT <= PAGE && Ring::Large.slot(number) + SLOT <= LANE);
            let lane = [back(index) + 8, argument(index, index) + 8, chunk(number) + CHUNK];
            assert!(lane.into_iter().all(|end| end <= LANE));
            assert!(answer_bytes(number) + REQUEST_BYTES <= LANE);
            let (start, length) = handle(index);
            assert!(start + length <= CATALOG && range_handle(index) + umf_ipc::HANDLE_SIZE <= CATALOG);
        }
    }

    #[test]
    fn record_takes_expected_slots() {
        assert_eq!([0, 1, 240, 241, 488, 489].map(slots), [1, 1, 1, 2, 2, 3]);
    }
}
