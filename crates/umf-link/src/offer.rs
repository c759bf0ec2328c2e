//! Messages that are offered: what a slot says of memory that the receiver fetches itself.

use crate::Engine;
use crate::board::Told;
use crate::layout::{DESCRIPTORS, MOST_RANGES};
use crate::sys::Iov;
use crate::tag::Context;

/// Kinds of messages in a ring.
pub(crate) const INLINE: u8 = 1;
pub(crate) const OFFER: u8 = 2;
pub(crate) const LEND: u8 = 3;
/// What comes after this one is in the large ring.
pub(crate) const GROWN: u8 = 4;

/// Set in the kind of a message of [`Context::Collectives`].
const COLLECTIVE: u8 = 0x80;

/// As a header has it.
#[inline]
pub(crate) const fn kind_in(kind: u8, context: Context) -> u8 {
    match context {
        Context::Messages => kind,
        Context::Collectives => kind | COLLECTIVE,
    }
}

/// What [`kind_in`] was given.
#[inline]
pub(crate) const fn kind_of(kind: u8) -> (u8, Context) {
    (kind & !COLLECTIVE, if kind & COLLECTIVE == 0 { Context::Messages } else { Context::Collectives })
}

/// What a receiver asks the sender of an offered message for.
pub(crate) const BOUNCE: u8 = 1;
pub(crate) const PUSH: u8 = 2;

/// A request: of which message, what, in which attempt.
pub(crate) const fn request(number: u32, code: u8, epoch: u16) -> u64 {
    number as u64 | (code as u64) << 32 | (epoch as u64) << 48
}

/// What of an attempt is done: chunks.
pub(crate) const fn progress(epoch: u16, count: u64) -> u64 {
    (epoch as u64) << 48 | count & ((1 << 48) - 1)
}

/// Words of an offer in one piece.
pub(crate) const ONE_RANGE: usize = 5;

const HAS_RANGES: u64 = 1;
const ATTENDED: u64 = 2;

/// Where the bytes of a message are in its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// Not told: they go through bounce buffers, or are in told memory.
    Untold,
    /// In one piece.
    One(Iov),
    /// In several.
    Many(Vec<Iov>),
}

impl Ranges {
    pub(crate) fn as_slice(&self) -> &[Iov] {
        match self {
            Self::Untold => &[],
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// A message that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its descriptor, and what tells it from others in there.
    pub index: usize,
    pub number: u32,
    pub length: usize,
    /// The engine that its sender wants.
    pub engine: Option<Engine>,
    /// Exported memory that it lies in, and where its first byte is there.
    pub told: Option<Told>,
    pub offset: u64,
    /// Whether the kernel may be asked for `ranges`.
    pub by_address: bool,
    /// Whether its sender waits for it, and does what is asked of it.
    pub attended: bool,
    /// Whether it was handed over: its sender does nothing for it, and it can be mapped only. (Its kind in the ring says so.)
    pub lent: bool,
    pub ranges: Ranges,
}

const fn code(engine: Option<Engine>) -> u64 {
    match engine {
        None => 0,
        Some(engine) => engine as u64 + 1,
    }
}

/// The first words of an offer.
const fn head(number: u32, index: usize, flags: u64, count: usize) -> u64 {
    number as u64 | (index as u64) << 32 | flags << 40 | (count as u64) << 48
}

/// What is said of memory that is handed over: [`encode`] of such an offer.
#[inline]
pub(crate) const fn encode_lent(
    number: u32,
    index: usize,
    length: usize,
    told: u64,
    offset: u64,
) -> [u64; ONE_RANGE] {
    [head(number, index, 0, 1), length as u64, told, offset, 0]
}

/// [`decode`] of memory that is handed over, in one piece.
#[inline]
pub(crate) fn decode_lent(words: &[u64; ONE_RANGE]) -> Option<Offer> {
    let &[first, length, told, offset, address] = words;
    let (number, index) = (first as u32, (first >> 32) as usize & 0xff);
    let is_it = number != 0 && index < DESCRIPTORS && first >> 40 == 1 << 8 && length < MOST && address == 0;
    is_it.then_some(Offer {
        index,
        number,
        length: length as usize,
        engine: None,
        told: Told::from_word(told),
        offset,
        by_address: false,
        attended: false,
        lent: true,
        ranges: Ranges::One(Iov { address, length }),
    })
}

/// As it is in a ring: one line, if it is in one piece.
pub(crate) fn encode(offer: &Offer, into: &mut Vec<u64>) {
    let ranges = offer.ranges.as_slice();
    let mut flags = code(offer.engine) << 4;
    flags |= if offer.by_address { HAS_RANGES } else { 0 };
    flags |= if offer.attended { ATTENDED } else { 0 };
    into.clear();
    into.extend([
        head(offer.number, offer.index, flags, ranges.len().min(MOST_RANGES)),
        offer.length as u64,
        offer.told.map_or(0, Told::to_word),
        offer.offset,
    ]);
    match ranges {
        [] => {}
        [one] => into.push(one.address),
        many => into.extend(many.iter().flat_map(|range| [range.address, range.length])),
    }
}

/// The most bytes of a message: 2^47 are more than a process has.
pub(crate) const MOST: u64 = 1 << 47;

/// `None` of what no sender writes.
pub(crate) fn decode(words: &[u64]) -> Option<Offer> {
    let &[first, length, told, offset, ref rest @ ..] = words else { return None };
    let (number, index, flags) = (first as u32, (first >> 32) as u8, (first >> 40) as u8);
    let count = (first >> 48) as usize;
    let engine = match flags >> 4 {
        0 => None,
        code => Some(*Engine::ALL.get(usize::from(code) - 1)?),
    };
    let is_range = |range: &Iov| range.length < MOST && range.address.checked_add(range.length).is_some();
    let ranges = match (count, rest) {
        (0, []) => Ranges::Untold,
        (1, &[address]) => Ranges::One(Iov { address, length }),
        (2..=MOST_RANGES, rest) if rest.len() == 2 * count => {
            Ranges::Many(rest.chunks_exact(2).map(|pair| Iov { address: pair[0], length: pair[1] }).collect())
        }
        _ => return None,
    };
    let sum = ranges
        .as_slice()
        .iter()
        .try_fold(0_u64, |sum, range| if is_range(range) { sum.checked_add(range.length) } else { None })?;
    let is_whole = ranges == Ranges::Untold || sum == length;
    if number == 0 || usize::from(index) >= DESCRIPTORS || length >= MOST || !is_whole {
        return None;
    }
    Some(Offer {
        index: usize::from(index),
        number,
        length: usize::try_from(length).ok()?,
        engine,
        told: Told::from_word(told),
        offset,
        by_address: u64::from(flags) & HAS_RANGES != 0,
        attended: u64::from(flags) & ATTENDED != 0,
        lent: false,
        ranges,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offers_round_trip() {
        let one = Iov { address: 0x7000, length: 100 };
        let other = Iov { address: 0x9000, length: 28 };
        for (length, ranges) in
            [(7, Ranges::Untold), (100, Ranges::One(one)), (128, Ranges::Many(vec![one, other]))]
        {
            let offer = Offer {
                index: 63,
                number: u32::MAX,
                length,
                engine: Some(Engine::Both),
                told: Told::from_word(0x1205),
                offset: 77,
                by_address: true,
                attended: length == 7,
                lent: false,
                ranges,
            };
            let mut words = Vec::new();
            encode(&offer, &mut words);
            assert_eq!(decode(&words), Some(offer));
            assert_eq!(decode(&words[..3]), None);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_words(
            words in prop::collection::vec(prop_oneof![any::<u64>(), 0..200_u64], 0..12),
            count in 0..5_u64,
        ) {
            let mut words = words;
            if let Some(first) = words.first_mut() {
                *first = *first & 0x0000_00ff_ffff_ffff | count << 48;
            }
            if let Some(offer) = decode(&words) {
                prop_assert!(offer.index < DESCRIPTORS);
                let sum: u64 = offer.ranges.as_slice().iter().map(|range| range.length).sum();
                prop_assert!(offer.ranges == Ranges::Untold || sum == offer.length as u64);
                let mut again = Vec::new();
                encode(&offer, &mut again);
                prop_assert_eq!(decode(&again), Some(offer));
            }
        }
    }
}
