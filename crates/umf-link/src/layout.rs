//! Where what lies in the segment of a link. `docs/link.md` has the table.
//!
//! The segment is a page about the whole, and an area for each side: what that side sends, and what it has to say about
//! what it receives. Side 0 is who connected.

/// "UMFLINK" and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLINK\x03");

/// Two cache lines: processors fetch them in pairs.
pub(crate) const LINE: usize = 128;

/// Bytes of a slot of a ring, its header included.
pub(crate) const SLOT: usize = 256;
/// Slots of a ring.
pub(crate) const SLOTS: u64 = 256;
/// Where the payload begins in the first slot of a message (header, tag), and in those that follow it (header).
pub(crate) const FIRST: usize = 16;
pub(crate) const NEXT: usize = 8;
/// Payload of the first slot, and of each that follows.
pub(crate) const FIRST_PAYLOAD: usize = SLOT - FIRST;
pub(crate) const NEXT_PAYLOAD: usize = SLOT - NEXT;
/// Receivers say what they have consumed each time that it is this much more.
pub(crate) const QUARTER: u64 = SLOTS / 4;
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

/// The page about the whole: magic, size, nonce; then a line for each side.
const SIDE_LINES: usize = 1024;
const FIRST_AREA: usize = 4096;

const RING: usize = 0;
const CONSUMED: usize = RING + SLOT * SLOTS as usize;
const DESCRIPTOR: usize = CONSUMED + 4096;
const DESCRIPTOR_SIZE: usize = 4 * LINE;
const GENERATIONS: usize = DESCRIPTOR + DESCRIPTOR_SIZE * DESCRIPTORS;
const HANDLE: usize = GENERATIONS + 4096;
const BOUNCE: usize = HANDLE + HANDLES * umf_ipc::HANDLE_SIZE;
const RANGE: usize = BOUNCE + CHUNK * CHUNKS as usize;
/// Of a range: a line of words, and a handle.
const RANGE_SIZE: usize = 64 + umf_ipc::HANDLE_SIZE;
const CALL: usize = RANGE + RANGE_SIZE * RANGES;
/// Of a request: a line of words, one for the answer, pieces, bytes.
const CALL_SIZE: usize = 2 * LINE + 16 * CALL_SPANS + CALL_BYTES;
/// Where this side receives into: address (or place in told memory) and length of each range.
const INTO: usize = (CALL + CALL_SIZE * CALLS as usize).next_multiple_of(4096);
const AREA: usize = (INTO + 16 * MOST_RANGES).next_multiple_of(4096);

/// Bytes of a segment.
pub(crate) const SIZE: usize = FIRST_AREA + 2 * AREA;

/// Words of the first page.
pub(crate) const MAGIC_WORD: usize = 0;
pub(crate) const SIZE_WORD: usize = 8;
pub(crate) const NONCE_WORDS: [usize; 2] = [16, 24];

/// One of the two sides of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// Who connected, and made the segment.
    Connector,
    /// Who accepted.
    Acceptor,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }

    const fn area(self) -> usize {
        FIRST_AREA + self as usize * AREA
    }

    const fn line(self) -> usize {
        SIDE_LINES + self as usize * 2 * LINE
    }

    /// How this side waits: set by it, taken back by whoever wakes it.
    pub(crate) const fn waiting(self) -> usize {
        self.line()
    }

    /// The futex that it sleeps on (the lower half of the word).
    pub(crate) const fn bell(self) -> usize {
        self.line() + 8
    }

    /// Not 0 once it has closed the link.
    pub(crate) const fn closed(self) -> usize {
        self.line() + 16
    }

    /// The number plus one of the processor that it last spun on; 0 if it has not.
    pub(crate) const fn processor(self) -> usize {
        self.line() + 24
    }

    /// The slot that number `number` of its ring is in.
    pub(crate) const fn slot(self, number: u64) -> usize {
        self.area() + RING + (number % SLOTS) as usize * SLOT
    }

    /// How many slots of this side's ring the other side has consumed, which writes it.
    pub(crate) const fn consumed(self) -> usize {
        self.area() + CONSUMED
    }

    /// A bit for each descriptor, which the other side turns when it gives back what was lent there.
    pub(crate) const fn given_back(self) -> usize {
        self.area() + CONSUMED + 2 * LINE
    }

    /// Which registered range of this side the other side copies in or out of by itself, which writes it.
    pub(crate) const fn inside(self) -> usize {
        self.area() + CONSUMED + 4 * LINE
    }

    const fn descriptor(self, index: usize) -> usize {
        self.area() + DESCRIPTOR + (index % DESCRIPTORS) * DESCRIPTOR_SIZE
    }

    /// How much of a message its sender has put out; written by this side.
    pub(crate) const fn progress(self, index: usize) -> usize {
        self.descriptor(index)
    }

    /// What the receiver asks of the sender, and its arguments; written by the other side.
    pub(crate) const fn request(self, index: usize) -> usize {
        self.descriptor(index) + LINE
    }

    /// Argument `number` (0 to 4) of a request.
    pub(crate) const fn argument(self, index: usize, number: usize) -> usize {
        self.request(index) + 8 * (number % 5 + 1)
    }

    /// What became of the message: both sides exchange it.
    pub(crate) const fn outcome(self, index: usize) -> usize {
        self.descriptor(index) + 2 * LINE
    }

    /// Which chunks of it are taken by whom: both sides exchange it.
    pub(crate) const fn claims(self, index: usize) -> usize {
        self.descriptor(index) + 3 * LINE
    }

    /// The generation of an entry of its board: odd while it is written.
    pub(crate) const fn generation(self, index: usize) -> usize {
        self.area() + GENERATIONS + (index % HANDLES) * 8
    }

    /// The bytes of a handle.
    pub(crate) const fn handle(self, index: usize) -> usize {
        self.area() + HANDLE + (index % HANDLES) * umf_ipc::HANDLE_SIZE
    }

    /// The generation of a registered range: 0 if it is none.
    pub(crate) const fn range(self, slot: usize) -> usize {
        self.area() + RANGE + (slot % RANGES) * RANGE_SIZE
    }

    /// Word `number` (0 to 3) of what is said about a range: address, length, flags, where it begins in the handle's memory.
    pub(crate) const fn range_word(self, slot: usize, number: usize) -> usize {
        self.range(slot) + 8 * (number % 4 + 1)
    }

    /// The handle of the memory that a range is in.
    pub(crate) const fn range_handle(self, slot: usize) -> usize {
        self.range(slot) + 64
    }

    /// What became of a request of this side: both sides exchange it.
    pub(crate) const fn call(self, number: u64) -> usize {
        self.area() + CALL + (number % CALLS) as usize * CALL_SIZE
    }

    /// Word `number` (0 to 3) of a request.
    pub(crate) const fn call_word(self, number: u64, word: usize) -> usize {
        self.call(number) + 8 * (word % 4 + 1)
    }

    /// The answer to it, which the other side writes.
    pub(crate) const fn call_answer(self, number: u64) -> usize {
        self.call(number) + LINE
    }

    /// Where its pieces are told, 16 bytes each.
    pub(crate) const fn call_span(self, number: u64, index: usize) -> usize {
        self.call(number) + 2 * LINE + 16 * (index % CALL_SPANS)
    }

    /// Its bytes, there or back.
    pub(crate) const fn call_bytes(self, number: u64) -> usize {
        self.call(number) + 2 * LINE + 16 * CALL_SPANS
    }

    /// Where a range of the list is told that this side receives into, 16 bytes each: of the one message that both copy just now.
    pub(crate) const fn into_range(self, index: usize) -> usize {
        self.area() + INTO + 16 * (index % MOST_RANGES)
    }

    /// A chunk of its bounce area.
    pub(crate) const fn chunk(self, number: u64) -> usize {
        self.area() + BOUNCE + (number % CHUNKS) as usize * CHUNK
    }
}

/// How many slots a message with this much payload takes.
pub(crate) const fn slots(length: usize) -> u64 {
    1 + length.saturating_sub(FIRST_PAYLOAD).div_ceil(NEXT_PAYLOAD) as u64
}

const _: () = assert!(slots(MAX_INLINE) + QUARTER < SLOTS);
const _: () = assert!(DESCRIPTORS == u64::BITS as usize);
const _: () = assert!(RANGE_SIZE.is_multiple_of(64) && HALF_OF_HANDLES > DESCRIPTORS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_all_is_inside() {
        let mut ranges = vec![(MAGIC_WORD, 32)];
        for side in [Side::Connector, Side::Acceptor] {
            ranges.push((side.waiting(), 8));
            ranges.push((side.bell(), 8));
            ranges.push((side.closed(), 8));
            ranges.push((side.processor(), 8));
            ranges.extend((0..SLOTS).map(|slot| (side.slot(slot), SLOT)));
            ranges.push((side.consumed(), 8));
            ranges.push((side.given_back(), 8));
            ranges.push((side.inside(), 8));
            for slot in 0..RANGES {
                ranges.push((side.range(slot), 8));
                ranges.extend((0..4).map(|number| (side.range_word(slot, number), 8)));
                ranges.push((side.range_handle(slot), umf_ipc::HANDLE_SIZE));
            }
            for number in 0..CALLS {
                ranges.push((side.call(number), 8));
                ranges.extend((0..4).map(|word| (side.call_word(number, word), 8)));
                ranges.push((side.call_answer(number), 8));
                ranges.extend((0..CALL_SPANS).map(|index| (side.call_span(number, index), 16)));
                ranges.push((side.call_bytes(number), CALL_BYTES));
            }
            for index in 0..DESCRIPTORS {
                ranges.push((side.progress(index), 8));
                ranges.push((side.request(index), 8));
                ranges.extend((0..5).map(|number| (side.argument(index, number), 8)));
                ranges.push((side.outcome(index), 8));
                ranges.push((side.claims(index), 8));
            }
            for index in 0..HANDLES {
                ranges.push((side.generation(index), 8));
                ranges.push((side.handle(index), umf_ipc::HANDLE_SIZE));
            }
            ranges.extend((0..CHUNKS).map(|chunk| (side.chunk(chunk), CHUNK)));
            ranges.extend((0..MOST_RANGES).map(|index| (side.into_range(index), 16)));
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(ranges.iter().all(|(start, size)| start.is_multiple_of(8) && start + size <= SIZE));
    }

    #[test]
    fn numbers_from_outside_stay_inside() {
        let side = Side::Acceptor;
        for number in [u64::MAX, 1 << 63] {
            assert!(side.slot(number) + SLOT <= SIZE && side.chunk(number) + CHUNK <= SIZE);
            let index = number as usize;
            assert!(side.claims(index) + 8 <= SIZE && side.handle(index) + umf_ipc::HANDLE_SIZE <= SIZE);
            assert!(side.argument(index, index) + 8 <= SIZE && side.call_word(number, index) + 8 <= SIZE);
            assert!(side.range_handle(index) + umf_ipc::HANDLE_SIZE <= SIZE);
            assert!(side.into_range(index) + 16 <= SIZE);
            assert!(
                side.call_bytes(number) + CALL_BYTES <= SIZE && side.call_span(number, index) + 16 <= SIZE
            );
        }
    }

    #[test]
    fn slots_of_messages() {
        assert_eq!([0, 1, 240, 241, 488, 489].map(slots), [1, 1, 1, 2, 2, 3]);
    }
}
