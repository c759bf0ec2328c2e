//! [`ByteSize`]: a size in bytes with an optional unit, as in `64KiB`.

use std::fmt;
use std::str::FromStr;

use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// A number of bytes.
///
/// The text form is a whole number with an optional binary unit: `65536`, `64K`, `64KiB`, `2 MiB`,
/// `1G`, `1TiB`, in any letter case. `KB`, `MB` and the like are errors, because they are
/// ambiguous: powers of 1000 or of 1024.
///
/// ```
/// use umf_core::settings::ByteSize;
///
/// let size: ByteSize = "64KiB".parse()?;
/// assert_eq!(size.get(), 65_536);
/// assert_eq!(size.to_string(), "64KiB");
/// # Ok::<(), umf_core::settings::ParseByteSizeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Zero bytes, which is "unlimited" for a limit.
    pub const ZERO: Self = Self(0);

    /// Returns a size of `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the size as a limit; `None` (unlimited) for zero.
    pub const fn limit(self) -> Option<u64> {
        match self.0 {
            0 => None,
            bytes => Some(bytes),
        }
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

impl fmt::Display for ByteSize {
    /// Writes the size in the largest unit that divides it, so that parsing the text returns the
    /// same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// The reason why a text is not a [`ByteSize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseByteSizeError {
    /// The text does not start with a whole number.
    NotANumber,
    /// The text after the number is not a unit.
    UnknownUnit,
    /// The size does not fit into 64 bits.
    TooLarge,
}

impl fmt::Display for ParseByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotANumber => "a byte size starts with a whole number: write for example 65536 or 64KiB",
            Self::UnknownUnit => {
                "not a unit of bytes: write B, KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024)"
            }
            Self::TooLarge => "a byte size must be below 2^64 bytes (16777216TiB)",
        })
    }
}

impl core::error::Error for ParseByteSizeError {}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(ParseByteSizeError::NotANumber);
        }
        let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(ParseByteSizeError::UnknownUnit),
        };
        // The text consists of digits, so parsing fails only if the number is too large.
        let number: u64 = number.parse().map_err(|_| ParseByteSizeError::TooLarge)?;
        number.checked_mul(1 << shift).map(Self).ok_or(ParseByteSizeError::TooLarge)
    }
}

impl Serialize for ByteSize {
    /// Serializes a number, or a text with a unit if one divides the size.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.trailing_zeros() < 10 || self.0 == 0 {
            serializer.serialize_u64(self.0)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        super::read_text(deserializer, "a number of bytes such as 65536 or \"64KiB\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_powers_of_1024_in_any_case() {
        for (text, bytes) in [
            ("0", 0),
            ("7", 7),
            ("7B", 7),
            ("64K", 65_536),
            ("64kib", 65_536),
            (" 2 MiB ", 2 << 20),
            ("1g", 1 << 30),
            ("3TiB", 3 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn parse_errors_name_the_invalid_part() {
        use ParseByteSizeError::*;
        for (text, error) in [
            ("", NotANumber),
            ("-1", NotANumber),
            ("+1", NotANumber),
            ("MiB", NotANumber),
            ("64MB", UnknownUnit),
            ("1.5GiB", UnknownUnit),
            ("1 2", UnknownUnit),
            ("18446744073709551616", TooLarge),
            ("16777216TiB", TooLarge),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn display_parses_to_the_same_size(bytes in any::<u64>(), shift in 0_u32..64) {
            let size = ByteSize((bytes >> shift) << (shift / 2));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn number_and_unit_multiply(number in 0_u64..1 << 20, unit in 0_usize..4, space in "[ ]{0,3}") {
            let (name, shift) = UNITS[unit];
            let size: ByteSize = format!("{number}{space}{name}").parse().unwrap();
            prop_assert_eq!(size.get(), number << shift);
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            let _ = text.parse::<ByteSize>();
        }
    }
}
