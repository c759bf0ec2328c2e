//! Records of messages that their receiver fetches: offers, and blocks that are handed over.

use crate::Engine;
use crate::handles::Announced;
use crate::kernel_copy::Iov;
use crate::layout::{MAX_LOANS, MAX_RANGES, OFFERS};

/// Kinds of records.
pub(crate) const INLINE: u8 = 1;
pub(crate) const OFFER: u8 = 2;
pub(crate) const BLOCK: u8 = 3;
/// The next record is in the large ring.
pub(crate) const GROWN: u8 = 4;
/// A request to the owner of a registered range.
pub(crate) const REQUEST: u8 = 5;
/// A short message of a mesh with immediate data: its payload begins with the 8 bytes of it.
pub(crate) const IMMEDIATE: u8 = 6;
/// The address of the process that connected, the first record of a mesh in its lane.
pub(crate) const NAME: u8 = 7;

/// Requests of the receiver of an offer to its sender.
pub(crate) const BOUNCE: u8 = 1;
pub(crate) const COPY_BACK: u8 = 2;

/// Returns the word with request `code` for message `number` in attempt `epoch`.
pub(crate) const fn request(number: u32, code: u8, epoch: u16) -> u64 {
    number as u64 | (code as u64) << 32 | (epoch as u64) << 48
}

/// Returns the word for `count` chunks that are done in attempt `epoch`.
pub(crate) const fn progress(epoch: u16, count: u64) -> u64 {
    (epoch as u64) << 48 | count & ((1 << 48) - 1)
}

/// A bound of the bytes of a message: the address space of a process is smaller.
pub(crate) const MAX_LENGTH: u64 = 1 << 47;

const HAS_RANGES: u64 = 1;
const AWAITED: u64 = 2;
const HAS_IMMEDIATE: u64 = 4;

/// The ranges of a message in the memory of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceRanges {
    /// Not described. The message is sent through bounce buffers.
    None,
    /// Contiguous.
    One(Iov),
    /// Several ranges.
    Many(Vec<Iov>),
}

impl SourceRanges {
    pub(crate) fn as_slice(&self) -> &[Iov] {
        match self {
            Self::None => &[],
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// A message that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The slot.
    pub index: usize,
    /// The number, which differs from those of other messages in the slot.
    pub number: u32,
    pub length: usize,
    /// The engine in the settings of the sender.
    pub engine: Option<Engine>,
    /// The exported memory that holds it, and the offset of its first byte there.
    pub announced: Option<Announced>,
    pub offset: u64,
    /// Whether the kernel may read `ranges`.
    pub by_address: bool,
    /// Whether the sender waits for the message, and serves requests at once.
    pub awaited: bool,
    /// Immediate data of a mesh's message.
    pub immediate: Option<u64>,
    pub ranges: SourceRanges,
}

const fn code(engine: Option<Engine>) -> u64 {
    match engine {
        None => 0,
        Some(engine) => engine as u64 + 1,
    }
}

impl Offer {
    /// Encodes the offer as words: five for one range, so that header, tag and offer are one cache
    /// line.
    pub(crate) fn encode(&self) -> Vec<u64> {
        let ranges = self.ranges.as_slice();
        let mut flags = code(self.engine) << 4;
        flags |= if self.by_address { HAS_RANGES } else { 0 };
        flags |= if self.awaited { AWAITED } else { 0 };
        flags |= if self.immediate.is_some() { HAS_IMMEDIATE } else { 0 };
        let count = ranges.len().min(MAX_RANGES) as u64;
        let mut words = vec![
            u64::from(self.number) | (self.index as u64) << 32 | flags << 44 | count << 52,
            self.length as u64,
            self.announced.map_or(0, Announced::to_word),
            self.offset,
        ];
        match ranges {
            [] => {}
            [one] => words.push(one.address),
            many => words.extend(many.iter().flat_map(|range| [range.address, range.length])),
        }
        words.extend(self.immediate);
        words
    }

    /// Returns the most words of an offer with so many ranges.
    pub(crate) const fn words(ranges: usize) -> usize {
        if ranges > 1 { 5 + 2 * ranges } else { 6 }
    }

    /// Decodes words; `None` if no sender writes them.
    pub(crate) fn decode(words: &[u64]) -> Option<Self> {
        let &[first, length, announced, offset, ref rest @ ..] = words else { return None };
        let (rest, immediate) = match rest.split_last() {
            Some((last, rest)) if first >> 44 & HAS_IMMEDIATE != 0 => (rest, Some(*last)),
            None if first >> 44 & HAS_IMMEDIATE != 0 => return None,
            _ => (rest, None),
        };
        let (number, index, flags) = (first as u32, (first >> 32) as usize & 0xfff, (first >> 44) as u8);
        let count = (first >> 52) as usize;
        let engine = match flags >> 4 {
            0 => None,
            code => Some(*Engine::ALL.get(usize::from(code) - 1)?),
        };
        let is_range =
            |range: &Iov| range.length < MAX_LENGTH && range.address.checked_add(range.length).is_some();
        let ranges = match (count, rest) {
            (0, []) => SourceRanges::None,
            (1, &[address]) => SourceRanges::One(Iov { address, length }),
            (2..=MAX_RANGES, rest) if rest.len() == 2 * count => SourceRanges::Many(
                rest.chunks_exact(2).map(|pair| Iov { address: pair[0], length: pair[1] }).collect(),
            ),
            _ => return None,
        };
        let add = |sum: u64, range: &Iov| if is_range(range) { sum.checked_add(range.length) } else { None };
        let sum = ranges.as_slice().iter().try_fold(0, add)?;
        let is_whole = ranges == SourceRanges::None || sum == length;
        if number == 0 || index >= OFFERS || length >= MAX_LENGTH || !is_whole {
            return None;
        }
        Some(Self {
            index,
            number,
            length: usize::try_from(length).ok()?,
            engine,
            announced: Announced::from_word(announced),
            offset,
            by_address: u64::from(flags) & HAS_RANGES != 0,
            awaited: u64::from(flags) & AWAITED != 0,
            immediate,
            ranges,
        })
    }
}

/// A block that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRecord {
    /// The slot.
    pub index: usize,
    pub length: usize,
    /// The exported memory that holds it, and the offset of its first byte there.
    pub announced: Announced,
    pub offset: u64,
}

impl BlockRecord {
    pub(crate) const WORDS: usize = 4;

    pub(crate) const fn encode(&self) -> [u64; Self::WORDS] {
        [self.index as u64, self.length as u64, self.announced.to_word(), self.offset]
    }

    /// Decodes words; `None` if no sender writes them.
    #[inline]
    pub(crate) fn decode(words: &[u64]) -> Option<Self> {
        let &[index, length, announced, offset] = words else { return None };
        let announced = Announced::from_word(announced)?;
        let is_valid = index < MAX_LOANS as u64 && length < MAX_LENGTH;
        is_valid.then_some(Self { index: index as usize, length: length as usize, announced, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offers_round_trip() {
        let one = Iov { address: 0x7000, length: 100 };
        let other = Iov { address: 0x9000, length: 28 };
        for (length, ranges) in [
            (7, SourceRanges::None),
            (100, SourceRanges::One(one)),
            (128, SourceRanges::Many(vec![one, other])),
        ] {
            let offer = Offer {
                index: OFFERS - 1,
                number: u32::MAX,
                length,
                engine: Some(Engine::Both),
                announced: Announced::from_word(0x1205),
                offset: 77,
                by_address: true,
                awaited: length == 7,
                immediate: (length != 100).then_some(u64::MAX),
                ranges,
            };
            let words = offer.encode();
            assert!(words.len() <= Offer::words(offer.ranges.as_slice().len()));
            assert_eq!(Offer::decode(&words), Some(offer));
            assert_eq!(Offer::decode(&words[..3]), None);
        }
        let announced = Announced::from_word(0x1205).unwrap();
        let block = BlockRecord { index: MAX_LOANS - 1, length: 5, announced, offset: 9 };
        assert_eq!(BlockRecord::decode(&block.encode()), Some(block));
        assert_eq!(BlockRecord::decode(&[MAX_LOANS as u64, 5, 0x1205, 9]), None);
    }

    proptest! {
        #[test]
        fn decoding_never_panics(
            words in prop::collection::vec(prop_oneof![any::<u64>(), 0..200_u64], 0..12),
            count in 0..5_u64,
        ) {
            let mut words = words;
            if let Some(first) = words.first_mut() {
                *first = *first & 0x000f_ffff_ffff_ffff | count << 52;
            }
            let _ = BlockRecord::decode(&words);
            if let Some(offer) = Offer::decode(&words) {
                prop_assert!(offer.index < OFFERS);
                let sum: u64 = offer.ranges.as_slice().iter().map(|range| range.length).sum();
                prop_assert!(offer.ranges == SourceRanges::None || sum == offer.length as u64);
                prop_assert_eq!(Offer::decode(&offer.encode()), Some(offer));
            }
        }
    }
}
