//! Where what lies in the segment of a link. `docs/link.md` has the table.
//!
//! The segment is a page about the whole, and an area for each side: what that side sends, and what it has to say about
//! what it receives. Side 0 is who connected.

/// "UMFLINK" and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLINK\x01");

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
const AREA: usize = BOUNCE + CHUNK * CHUNKS as usize;

/// Bytes of a segment.
pub(crate) const SIZE: usize = FIRST_AREA + 2 * AREA;

/// Words of the first page.
pub(crate) const MAGIC_WORD: usize = 0;
pub(crate) const SIZE_WORD: usize = 8;
pub(crate) const NONCE_WORDS: [usize; 2] = [16, 24];

/// One of the two sides of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
const _: () = assert!(AREA.is_multiple_of(4096) && HALF_OF_HANDLES > DESCRIPTORS);

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
            ranges.extend((0..SLOTS).map(|slot| (side.slot(slot), SLOT)));
            ranges.push((side.consumed(), 8));
            ranges.push((side.given_back(), 8));
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
            assert!(side.argument(index, index) + 8 <= SIZE);
        }
    }

    #[test]
    fn slots_of_messages() {
        assert_eq!([0, 1, 240, 241, 488, 489].map(slots), [1, 1, 1, 2, 2, 3]);
    }
}
