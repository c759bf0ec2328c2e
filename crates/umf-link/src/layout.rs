//! What lies where in a lane: the file that one side of a link writes and the other one reads. `docs/link.md` has the table.
//!
//! The first page has all that short messages need, and is the only one that every lane has. The others get their memory
//! when they are first used.

/// "UMFLANE" and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLANE\x01");

pub(crate) const PAGE: usize = 4096;
/// Two cache lines: processors fetch them in pairs.
pub(crate) const LINE: usize = 128;

/// Bytes of a slot of a ring, its header included.
pub(crate) const SLOT: usize = 256;
/// Where the payload begins in the first slot of a message (header, tag), and in those that follow it (header).
pub(crate) const FIRST: usize = 16;
pub(crate) const NEXT: usize = 8;
/// Payload of the first slot, and of each that follows.
pub(crate) const FIRST_PAYLOAD: usize = SLOT - FIRST;
pub(crate) const NEXT_PAYLOAD: usize = SLOT - NEXT;
/// The largest payload in a ring. Its slots fit beside a quarter that was consumed and not told.
pub(crate) const MAX_INLINE: usize = 32 << 10;

/// Messages of a side that are offered, and not taken yet.
pub(crate) const DESCRIPTORS: usize = 64;
/// Handles that a side has told. Its sender writes the lower half, its receiver the upper one.
pub(crate) const HANDLES: usize = 256;
pub(crate) const HALF_OF_HANDLES: usize = HANDLES / 2;
/// Chunks of the bounce area of a side, and bytes of each.
pub(crate) const CHUNKS: u64 = 8;
pub(crate) const CHUNK: usize = 32 << 10;

/// Ranges of a side that are registered at a time.
pub(crate) const RANGES: usize = 128;
/// Requests of a side that the other one has not answered, and what goes with each: pieces, and bytes.
pub(crate) const CALLS: u64 = 4;
pub(crate) const CALL_SPANS: usize = 128;
pub(crate) const CALL_BYTES: usize = 16 << 10;

/// The most ranges that are told of a message, by who sends it or who receives it.
pub(crate) const MOST_RANGES: usize = 1024;

/// Words of the first page: what both agreed on.
pub(crate) const MAGIC_WORD: usize = 0;
pub(crate) const NONCE_WORDS: [usize; 2] = [16, 24];
/// Not 0 once this side has closed the link.
pub(crate) const CLOSED: usize = LINE;
/// The number plus one of the processor that this side last spun on; 0 if it has not.
pub(crate) const PROCESSOR: usize = LINE + 8;
/// How often this side has asked to be told by its socket.
pub(crate) const ARMED: usize = LINE + 16;
/// Not 0 once this side takes no part in collectives any more: the process because of whose end, and bit 32.
pub(crate) const GIVEN_UP: usize = LINE + 24;
/// How many slots of the other side's rings this side has consumed.
pub(crate) const CONSUMED: usize = 2 * LINE;
/// A bit for each descriptor of the other side, which is turned when what was lent there is given back.
pub(crate) const GIVEN_BACK: usize = 3 * LINE;

/// The two rings. A sender begins with the small one, and goes on in the large one when that is too small.
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

    /// Receivers say what they have consumed each time that it is this much more.
    pub(crate) const fn quarter(self) -> u64 {
        self.slots() / 4
    }

    /// The longest payload of a message.
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

    pub(crate) const fn size(self) -> usize {
        self.slots() as usize * SLOT
    }

    /// The slot that number `number` is in. Numbers go on from ring to ring.
    #[inline(always)]
    pub(crate) const fn slot(self, number: u64) -> usize {
        // (By a constant each, so that nothing is divided by what the compiler does not know.)
        match self {
            Self::Small => Self::Small.offset() + (number % Self::Small.slots()) as usize * SLOT,
            Self::Large => Self::Large.offset() + (number % Self::Large.slots()) as usize * SLOT,
        }
    }
}

/// A line for each message that is offered, by its sender and, in the lane of the other side, by its receiver.
const SENT: usize = Ring::Large.offset() + Ring::Large.size();
const TAKEN: usize = SENT + DESCRIPTORS * LINE;
const GENERATIONS: usize = TAKEN + DESCRIPTORS * LINE;
/// Which registered range of the other side this side copies in or out of by itself.
pub(crate) const INSIDE: usize = GENERATIONS + 8 * HANDLES;
const HANDLE: usize = (INSIDE + LINE).next_multiple_of(PAGE);
const BOUNCE: usize = HANDLE + HANDLES * umf_ipc::HANDLE_SIZE;
const RANGE: usize = BOUNCE + CHUNK * CHUNKS as usize;
/// Of a range: a line of words, and a handle.
const RANGE_SIZE: usize = 64 + umf_ipc::HANDLE_SIZE;
const ASKED: usize = RANGE + RANGE_SIZE * RANGES;
/// Of a request: a line of words, pieces, bytes.
const ASKED_SIZE: usize = LINE + 16 * CALL_SPANS + CALL_BYTES;
const ANSWER: usize = ASKED + ASKED_SIZE * CALLS as usize;
/// Of an answer: a line of words, bytes.
const ANSWER_SIZE: usize = LINE + CALL_BYTES;
/// Where this side receives into: address (or place in told memory) and length of each range.
const INTO: usize = ANSWER + ANSWER_SIZE * CALLS as usize;

/// Bytes of a lane.
pub(crate) const SIZE: usize = (INTO + 16 * MOST_RANGES).next_multiple_of(PAGE);

/// A part of a lane that gets its memory at once: where it begins, and its bytes.
pub(crate) type Part = (usize, usize);

pub(crate) const LARGE_RING: Part = (Ring::Large.offset(), Ring::Large.size());
/// What is said of messages that are offered, but for handles and bytes.
pub(crate) const OFFERS: Part = (SENT, HANDLE - SENT);
pub(crate) const REGISTERED: Part = (RANGE, RANGE_SIZE * RANGES);
pub(crate) const ASKING: Part = (ASKED, ASKED_SIZE * CALLS as usize);
pub(crate) const ANSWERING: Part = (ANSWER, ANSWER_SIZE * CALLS as usize);
pub(crate) const RECEIVING: Part = (INTO, 16 * MOST_RANGES);

const fn sent(index: usize) -> usize {
    SENT + (index % DESCRIPTORS) * LINE
}

/// Which message is in a descriptor, and whether it was withdrawn.
pub(crate) const fn offered(index: usize) -> usize {
    sent(index)
}

/// How much of it its sender has put out, or copied.
pub(crate) const fn progress(index: usize) -> usize {
    sent(index) + 8
}

/// How many chunks of it its sender has claimed, from its end.
pub(crate) const fn back(index: usize) -> usize {
    sent(index) + 16
}

/// What the receiver has decided about the message in a descriptor of the other side.
pub(crate) const fn taken(index: usize) -> usize {
    TAKEN + (index % DESCRIPTORS) * LINE
}

/// How many chunks of it the receiver has claimed, from its beginning.
pub(crate) const fn front(index: usize) -> usize {
    taken(index) + 8
}

/// What the receiver asks of the sender, and its arguments.
pub(crate) const fn request(index: usize) -> usize {
    taken(index) + 16
}

/// Argument `number` (0 to 3) of a request.
pub(crate) const fn argument(index: usize, number: usize) -> usize {
    request(index) + 8 * (number % 4 + 1)
}

/// The generation of an entry of the board: odd while it is written.
pub(crate) const fn generation(index: usize) -> usize {
    GENERATIONS + (index % HANDLES) * 8
}

/// The bytes of a handle.
pub(crate) const fn handle(index: usize) -> usize {
    HANDLE + (index % HANDLES) * umf_ipc::HANDLE_SIZE
}

/// A chunk of the bounce area.
pub(crate) const fn chunk(number: u64) -> usize {
    BOUNCE + (number % CHUNKS) as usize * CHUNK
}

/// The generation of a registered range: 0 if it is none.
pub(crate) const fn range(slot: usize) -> usize {
    RANGE + (slot % RANGES) * RANGE_SIZE
}

/// Word `number` (0 to 3) of what is said about a range: address, length, flags, where it begins in the handle's memory.
pub(crate) const fn range_word(slot: usize, number: usize) -> usize {
    range(slot) + 8 * (number % 4 + 1)
}

/// The handle of the memory that a range is in.
pub(crate) const fn range_handle(slot: usize) -> usize {
    range(slot) + 64
}

/// A request of this side, and whether it was withdrawn.
pub(crate) const fn asked(number: u64) -> usize {
    ASKED + (number % CALLS) as usize * ASKED_SIZE
}

/// Word `number` (0 to 3) of a request.
pub(crate) const fn asked_word(number: u64, word: usize) -> usize {
    asked(number) + 8 * (word % 4 + 1)
}

/// Where its pieces are told, 16 bytes each.
pub(crate) const fn asked_span(number: u64, index: usize) -> usize {
    asked(number) + LINE + 16 * (index % CALL_SPANS)
}

/// The bytes that go with it.
pub(crate) const fn asked_bytes(number: u64) -> usize {
    asked(number) + LINE + 16 * CALL_SPANS
}

/// This side's answer to a request of the other one.
pub(crate) const fn answer(number: u64) -> usize {
    ANSWER + (number % CALLS) as usize * ANSWER_SIZE
}

/// The bytes that go with it.
pub(crate) const fn answer_bytes(number: u64) -> usize {
    answer(number) + LINE
}

/// Where a range of the list is told that this side receives into, 16 bytes each: of the one message that both copy just now.
pub(crate) const fn into_range(index: usize) -> usize {
    INTO + 16 * (index % MOST_RANGES)
}

/// How many slots a message with this much payload takes.
pub(crate) const fn slots(length: usize) -> u64 {
    1 + length.saturating_sub(FIRST_PAYLOAD).div_ceil(NEXT_PAYLOAD) as u64
}

const _: () = assert!(slots(Ring::Large.longest()) + Ring::Large.quarter() < Ring::Large.slots());
const _: () = assert!(slots(Ring::Small.longest()) + 1 + Ring::Small.quarter() < Ring::Small.slots());
const _: () = assert!(Ring::Small.offset() + Ring::Small.size() == PAGE);
const _: () = assert!(DESCRIPTORS == u64::BITS as usize);
const _: () = assert!(RANGE_SIZE.is_multiple_of(64) && HALF_OF_HANDLES > DESCRIPTORS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_all_is_inside() {
        let mut ranges: Vec<(usize, usize)> = vec![(MAGIC_WORD, 8), (NONCE_WORDS[0], 16)];
        ranges
            .extend([CLOSED, PROCESSOR, ARMED, GIVEN_UP, CONSUMED, GIVEN_BACK, INSIDE].map(|word| (word, 8)));
        for ring in [Ring::Small, Ring::Large] {
            ranges.extend((0..ring.slots()).map(|slot| (ring.slot(slot), SLOT)));
        }
        for slot in 0..RANGES {
            ranges.push((range(slot), 8));
            ranges.extend((0..4).map(|number| (range_word(slot, number), 8)));
            ranges.push((range_handle(slot), umf_ipc::HANDLE_SIZE));
        }
        for number in 0..CALLS {
            ranges.extend([asked(number), answer(number)].map(|word| (word, 8)));
            ranges.extend((0..4).map(|word| (asked_word(number, word), 8)));
            ranges.extend((0..CALL_SPANS).map(|index| (asked_span(number, index), 16)));
            ranges.extend([asked_bytes(number), answer_bytes(number)].map(|bytes| (bytes, CALL_BYTES)));
        }
        for index in 0..DESCRIPTORS {
            let words =
                [offered(index), progress(index), back(index), taken(index), front(index), request(index)];
            ranges.extend(words.map(|word| (word, 8)));
            ranges.extend((0..4).map(|number| (argument(index, number), 8)));
        }
        for index in 0..HANDLES {
            ranges.push((generation(index), 8));
            ranges.push((handle(index), umf_ipc::HANDLE_SIZE));
        }
        ranges.extend((0..CHUNKS).map(|number| (chunk(number), CHUNK)));
        ranges.extend((0..MOST_RANGES).map(|index| (into_range(index), 16)));
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(ranges.iter().all(|(start, size)| start.is_multiple_of(8) && start + size <= SIZE));
    }

    #[test]
    fn numbers_from_outside_stay_inside() {
        for number in [u64::MAX, 1 << 63] {
            assert!(Ring::Small.slot(number) + SLOT <= PAGE && Ring::Large.slot(number) + SLOT <= SIZE);
            let index = number as usize;
            for end in [
                back(index) + 8,
                argument(index, index) + 8,
                handle(index) + umf_ipc::HANDLE_SIZE,
                chunk(number) + CHUNK,
                range_handle(index) + umf_ipc::HANDLE_SIZE,
                asked_word(number, index) + 8,
                asked_span(number, index) + 16,
                asked_bytes(number) + CALL_BYTES,
                answer_bytes(number) + CALL_BYTES,
                into_range(index) + 16,
            ] {
                assert!(end <= SIZE);
            }
        }
    }

    #[test]
    fn slots_of_messages() {
        assert_eq!([0, 1, 240, 241, 488, 489].map(slots), [1, 1, 1, 2, 2, 3]);
    }
}
