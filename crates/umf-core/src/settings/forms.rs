//! The forms of values in settings: times, lists of numbers, `"auto"`, and values that only trusted
//! sources may set.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;
use core::time::Duration;

use serde_core::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde_core::{Serialize, Serializer};

use super::ByteSize;

/// The form of a `T` in settings. Each type is its own form.
pub trait Form<T> {
    /// Returns the value of the form.
    fn value(self) -> T;
    /// Returns the form of a value.
    fn of(value: &T) -> Self;
}

impl<T: Clone> Form<T> for T {
    fn value(self) -> T {
        self
    }

    fn of(value: &T) -> T {
        value.clone()
    }
}

impl Form<u64> for ByteSize {
    fn value(self) -> u64 {
        self.get()
    }

    fn of(bytes: &u64) -> Self {
        Self::new(*bytes)
    }
}

impl Form<usize> for ByteSize {
    fn value(self) -> usize {
        usize::try_from(self.get()).unwrap_or(usize::MAX)
    }

    fn of(bytes: &usize) -> Self {
        Self::new(*bytes as u64)
    }
}

macro_rules! times {
    ($($(#[$meta:meta])* $name:ident, $from:ident, $as:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub u64);

        impl Form<Duration> for $name {
            fn value(self) -> Duration {
                Duration::$from(self.0)
            }

            fn of(time: &Duration) -> Self {
                Self(u64::try_from(time.$as()).unwrap_or(u64::MAX))
            }
        }

        /// Zero is `None`, no limit.
        impl Form<Option<Duration>> for $name {
            fn value(self) -> Option<Duration> {
                (self.0 != 0).then(|| Duration::$from(self.0))
            }

            fn of(time: &Option<Duration>) -> Self {
                Form::of(&time.unwrap_or_default())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u64(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                u64::deserialize(deserializer).map(Self)
            }
        }
    )+};
}

times! {
    /// Whole milliseconds.
    Milliseconds, from_millis, as_millis;
    /// Whole microseconds.
    Microseconds, from_micros, as_micros;
}

/// `"auto"`, or a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// umf chooses the value.
    #[default]
    Auto,
    /// A given value.
    Value(T),
}

impl<T: Clone> Form<Option<T>> for Auto<T> {
    fn value(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Value(value) => Some(value),
        }
    }

    fn of(value: &Option<T>) -> Self {
        value.clone().map_or(Self::Auto, Self::Value)
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Value(value) => value.serialize(serializer),
        }
    }
}

/// For numbers, and enumerations of [`words!`](crate::words!).
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for AutoVisitor<T> {
            type Value = Auto<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a value")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Auto<T>, E> {
                match text {
                    "auto" => Ok(Auto::Auto),
                    other => T::deserialize(de::value::StrDeserializer::new(other)).map(Auto::Value),
                }
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Auto<T>, E> {
                T::deserialize(de::value::U64Deserializer::new(number)).map(Auto::Value)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Auto<T>, E> {
                T::deserialize(de::value::I64Deserializer::new(number)).map(Auto::Value)
            }
        }
        deserializer.deserialize_any(AutoVisitor(PhantomData))
    }
}

/// Distinct numbers from 0 to 1023: a list, or a text such as `"0,2-4"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub Vec<u32>);

impl Numbers {
    /// The largest number of a NUMA node on Linux.
    const LAST: u32 = 1023;

    /// Adds a range. `None` if it is invalid, or overlaps another.
    fn add(&mut self, first: u32, last: u32) -> Option<()> {
        let is_new =
            first <= last && last <= Self::LAST && !(first..=last).any(|number| self.0.contains(&number));
        is_new.then(|| self.0.extend(first..=last))
    }
}

impl Form<Vec<u32>> for Numbers {
    fn value(self) -> Vec<u32> {
        self.0
    }

    fn of(numbers: &Vec<u32>) -> Self {
        Self(numbers.clone())
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.0.iter().try_for_each(|number| {
            write!(f, "{separator}{number}")?;
            separator = ",";
            Ok(())
        })
    }
}

impl FromStr for Numbers {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = Self::default();
        let number = |text: &str| match text.trim() {
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            _ => None,
        };
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first).zip(number(last));
            range.and_then(|(first, last)| numbers.add(first, last)).ok_or(())?;
        }
        Ok(numbers)
    }
}

crate::text_form!(Numbers, "a list of numbers from 0 to 1023, each once, such as [0, 2] or \"0,2-4\"");

/// Deserializes a type by its `FromStr`. A number is converted to its digits, and a list to its
/// elements separated by commas.
///
/// # Errors
/// `invalid_value` with `expected`.
pub fn read_text<'de, T: FromStr, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<T, D::Error> {
    let text = deserializer.deserialize_any(TextVisitor(expected))?;
    text.trim().parse().map_err(|_| de::Error::invalid_value(Unexpected::Str(&text), &expected))
}

/// Converts a value to the text that [`read_text`] parses.
struct TextVisitor(&'static str);

impl<'de> de::DeserializeSeed<'de> for TextVisitor {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<String, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = list.next_element_seed(TextVisitor(self.0))? {
            parts.push(part);
        }
        Ok(parts.join(","))
    }
}

/// Implements serde's traits for a type with `FromStr` and `Display`. The text names the valid
/// values.
#[macro_export]
macro_rules! text_form {
    ($type:ty, $expected:expr) => {
        impl $crate::settings::serde::Serialize for $type {
            fn serialize<S: $crate::settings::serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> $crate::settings::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::settings::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                $crate::settings::read_text(deserializer, $expected)
            }
        }
    };
}

/// The words of an enumeration: the expected values, and the error for another word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneOf(pub &'static [&'static str]);

impl core::error::Error for OneOf {}

impl OneOf {
    /// Deserializes one of the words.
    ///
    /// # Errors
    /// `unknown_variant` for another word.
    pub fn read<'de, T: FromStr, D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        struct WordVisitor<T>(OneOf, PhantomData<T>);
        impl<T: FromStr> Visitor<'_> for WordVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
                text.trim().parse().map_err(|_| E::unknown_variant(text, self.0.0))
            }
        }
        deserializer.deserialize_str(WordVisitor(self, PhantomData))
    }
}

/// The newtype name of [`Code`], by which a deserializer recognises it.
pub const CODE: &str = "umf::Code";
/// The newtype name of [`Trusted`].
pub const TRUSTED: &str = "umf::Trusted";

macro_rules! guarded {
    ($($(#[$meta:meta])* $name:ident, $constant:ident;)+) => {$(
        $(#[$meta])*
        ///
        /// It is deserialized as a newtype with the name of the constant. If its source may not set
        /// such a value, a deserializer visits something other than a newtype.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name<T>(pub T);

        impl<T: Clone> Form<T> for $name<T> {
            fn value(self) -> T {
                self.0
            }

            fn of(value: &T) -> Self {
                Self(value.clone())
            }
        }

        impl<T: Clone> Form<Option<T>> for Option<$name<T>> {
            fn value(self) -> Option<T> {
                self.map(|guarded| guarded.0)
            }

            fn of(value: &Option<T>) -> Self {
                value.clone().map($name)
            }
        }

        impl<T: Serialize> Serialize for $name<T> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_newtype_struct($constant, &self.0)
            }
        }

        impl<'de, T: Deserialize<'de>> Deserialize<'de> for $name<T> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_newtype_struct($constant, NewtypeVisitor(PhantomData)).map(Self)
            }
        }
    )+};
}

guarded! {
    /// A value that names code: the path of a plugin or driver, or the name of a function in it.
    Code, CODE;
    /// A value that a file in the working directory may not set: a file to write to, or a process
    /// that may trace this one.
    Trusted, TRUSTED;
}

/// Returns the error for a value that its source may not set: an invalid type whose unexpected part
/// is a newtype.
pub fn refused<E: de::Error>() -> E {
    E::invalid_type(Unexpected::NewtypeStruct, &"a value from a source that may set it")
}

/// Accepts a newtype only.
struct NewtypeVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for NewtypeVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value from a source that may set it")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::deserialize(deserializer)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<T, E> {
        Err(refused())
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<T, E> {
        Err(refused())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_in_range() {
        let read = |text: &str| text.parse::<Numbers>().map(|numbers| numbers.0);
        assert_eq!(read("0, 2-4"), Ok(vec![0, 2, 3, 4]));
        assert_eq!(read(" "), Ok(Vec::new()));
        for text in ["0,0", "1-3,2", "3-1", "1024", "0-4294967295", "a", "-1", "1-", "+1"] {
            assert_eq!(read(text), Err(()), "{text}");
        }
        assert_eq!(Numbers(vec![3, 1]).to_string(), "3,1");
    }
}
