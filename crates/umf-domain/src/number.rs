//! [`Number`]: the name of an object in its domain.

use core::fmt;
use core::str::FromStr;

/// The name of an object, a plain `u64` that can be sent to any process.
///
/// | bits | what |
/// |---|---|
/// | 0..16 | slot in the domain's table |
/// | 16..28 | made of the domain's name and user: tells numbers of other domains |
/// | 28..64 | reuse: random when the domain begins, one more each time the slot is used again |
///
/// So an old number fails, be it that its slot was used again or that the domain died out and was made anew. The upper
/// bits come round after 2^36 uses of one slot.
///
/// As text it is hexadecimal (`0x0123456789abcdef`); the decimal form is read, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Number(u64);

const TAG_SHIFT: u32 = 16;
const REUSE_SHIFT: u32 = 28;
const TAG_MASK: u64 = 0xfff;
const REUSE_MASK: u64 = (1 << 36) - 1;

impl Number {
    pub(crate) const fn new(slot: u16, tag: Tag, reuse: Reuse) -> Self {
        Self(reuse.0 << REUSE_SHIFT | (tag.0 as u64) << TAG_SHIFT | slot as u64)
    }

    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }

    pub(crate) const fn tag(self) -> Tag {
        Tag((self.0 >> TAG_SHIFT & TAG_MASK) as u16)
    }

    pub(crate) const fn reuse(self) -> Reuse {
        Reuse(self.0 >> REUSE_SHIFT)
    }
}

impl From<u64> for Number {
    fn from(bits: u64) -> Self {
        Self(bits)
    }
}

impl From<Number> for u64 {
    fn from(number: Number) -> Self {
        number.0
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The text is no number: 1 to 16 hexadecimal digits after `0x`, or a decimal number that fits 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the number of an object: 0x and up to 16 hexadecimal digits, or a decimal number of 64 bits")]
pub struct ParseNumberError;

impl FromStr for Number {
    type Err = ParseNumberError;

    fn from_str(text: &str) -> Result<Self, ParseNumberError> {
        let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
        // `from_str_radix` takes a sign.
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ParseNumberError);
        }
        u64::from_str_radix(digits, radix).map(Self).map_err(|_| ParseNumberError)
    }
}

/// Of a domain's name and user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u16);

impl Tag {
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

/// What differs each time a slot is used again: 36 bits, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reuse(u64);

impl Reuse {
    /// Of whatever 64 bits; 0 has none.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits & REUSE_MASK {
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
    fn parts_and_text() {
        let number = Number::new(0xfffe, Tag(0xabc), Reuse(0x1_2345_6789));
        assert_eq!(u64::from(number), 0x1234_5678_9abc_fffe);
        assert_eq!(number.to_string(), "0x123456789abcfffe");
        assert_eq!("1".parse(), Ok(Number(1)));
        for bad in ["", "0x", "+1", "0x+1", "-1", "0x11223344556677889", "ff", "18446744073709551616", " 1"] {
            assert_eq!(bad.parse::<Number>(), Err(ParseNumberError), "{bad:?}");
        }
    }

    #[test]
    fn reuse_advances_and_skips_zero() {
        assert_eq!(Reuse::from_bits(7).next(), Reuse(8));
        assert_eq!(Reuse(REUSE_MASK).next(), Reuse(1));
        assert_eq!(Reuse::from_bits(1 << 40), Reuse(1));
    }

    #[test]
    fn tags_differ() {
        let tags: std::collections::HashSet<u16> =
            (0..1000).map(|number| Tag::of(format!("domain-{number}").as_bytes()).bits()).collect();
        // As many as 1000 throws at 4096 places hit, about.
        assert!(tags.len() > 800, "{}", tags.len());
    }

    proptest! {
        #[test]
        fn numbers_round_trip(bits: u64, text in "\\PC{0,24}") {
            let number = Number::from(bits);
            prop_assert_eq!(number.to_string().parse(), Ok(number));
            prop_assert_eq!(bits.to_string().parse(), Ok(number));
            if number.reuse().bits() != 0 {
                prop_assert_eq!(Number::new(number.slot(), number.tag(), number.reuse()), number);
            }
            let _ = text.parse::<Number>();
        }
    }
}
