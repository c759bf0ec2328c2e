//! [`ObjectId`]: the name of an object in its domain.

use core::fmt;
use core::str::FromStr;

/// The name of an object: a `u64` that can be sent to any process.
///
/// | bits | content |
/// |---|---|
/// | 0..16 | slot in the domain's table |
/// | 16..28 | tag: a hash of the domain's name and user |
/// | 28..64 | generation: random when the domain begins, plus one at each reuse of the slot |
///
/// An old id fails: if its slot was reused, and if the domain ended and was founded again. The
/// generation wraps after 2^36 uses of one slot.
///
/// The text form is hexadecimal (`0x0123456789abcdef`). Parsing accepts decimal numbers too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(u64);

const TAG_SHIFT: u32 = 16;
const GENERATION_SHIFT: u32 = 28;
const TAG_MASK: u64 = 0xfff;
const GENERATION_MASK: u64 = (1 << 36) - 1;

impl ObjectId {
    pub(crate) const fn new(slot: u16, tag: DomainTag, generation: Generation) -> Self {
        Self(generation.0 << GENERATION_SHIFT | (tag.0 as u64) << TAG_SHIFT | slot as u64)
    }

    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }

    pub(crate) const fn tag(self) -> DomainTag {
        DomainTag((self.0 >> TAG_SHIFT & TAG_MASK) as u16)
    }

    pub(crate) const fn generation(self) -> Generation {
        Generation(self.0 >> GENERATION_SHIFT)
    }
}

impl From<u64> for ObjectId {
    fn from(bits: u64) -> Self {
        Self(bits)
    }
}

impl From<ObjectId> for u64 {
    fn from(id: ObjectId) -> Self {
        id.0
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The error of parsing an [`ObjectId`] from text.
///
/// The text must be `0x` and 1 to 16 hexadecimal digits, or a decimal number of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the text is not an object id: it is neither 0x with 1 to 16 hexadecimal digits nor a decimal number of 64 bits; copy the id from Object::id"
)]
pub struct ParseObjectIdError;

impl FromStr for ObjectId {
    type Err = ParseObjectIdError;

    fn from_str(text: &str) -> Result<Self, ParseObjectIdError> {
        let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
        // `from_str_radix` accepts a sign.
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ParseObjectIdError);
        }
        u64::from_str_radix(digits, radix).map(Self).map_err(|_| ParseObjectIdError)
    }
}

/// A hash of a domain's name and user, of 12 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DomainTag(u16);

impl DomainTag {
    pub(crate) fn of(text: &[u8]) -> Self {
        // FNV-1a, folded.
        let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(((hash ^ hash >> 12 ^ hash >> 24 ^ hash >> 36 ^ hash >> 48) & TAG_MASK) as u16)
    }

    pub(crate) const fn bits(self) -> u16 {
        self.0
    }
}

/// The number of uses of a slot, from a random start: 36 bits, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// Returns the generation in the low 36 bits; 1 if they are 0.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits & GENERATION_MASK {
            0 => Self(1),
            bits => Self(bits),
        }
    }

    pub(crate) const fn next(self) -> Self {
        Self::from_bits(self.0 + 1)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn id_has_documented_bits_and_hexadecimal_text() {
        let id = ObjectId::new(0xfffe, DomainTag(0xabc), Generation(0x1_2345_6789));
        assert_eq!(u64::from(id), 0x1234_5678_9abc_fffe);
        assert_eq!(id.to_string(), "0x123456789abcfffe");
        assert_eq!("1".parse(), Ok(ObjectId(1)));
        for bad in ["", "0x", "+1", "0x+1", "-1", "0x11223344556677889", "ff", "18446744073709551616", " 1"] {
            assert_eq!(bad.parse::<ObjectId>(), Err(ParseObjectIdError), "{bad:?}");
        }
    }

    #[test]
    fn generation_advances_and_skips_zero() {
        assert_eq!(Generation::from_bits(7).next(), Generation(8));
        assert_eq!(Generation(GENERATION_MASK).next(), Generation(1));
        assert_eq!(Generation::from_bits(1 << 40), Generation(1));
    }

    #[test]
    fn tags_of_1000_domains_differ_mostly() {
        let tags: std::collections::HashSet<u16> =
            (0..1000).map(|domain| DomainTag::of(format!("domain-{domain}").as_bytes()).bits()).collect();
        // 1,000 random tags out of 4,096 have about 887 distinct values.
        assert!(tags.len() > 800, "{}", tags.len());
    }

    proptest! {
        #[test]
        fn ids_round_trip_as_text(bits: u64, text in "\\PC{0,24}") {
            let id = ObjectId::from(bits);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(bits.to_string().parse(), Ok(id));
            if id.generation().bits() != 0 {
                prop_assert_eq!(ObjectId::new(id.slot(), id.tag(), id.generation()), id);
            }
            let _ = text.parse::<ObjectId>();
        }
    }
}
