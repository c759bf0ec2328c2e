//! [`Strict`]: a deserializer without conversions and with structured errors. The crate `config` converts
//! silently (1.5 to 2, `true` to 1).

use std::fmt::{self, Display};

use config::{Value, ValueKind};
use serde_core::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde_core::de::{self, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use umf_core::settings::{CODE, OneOf, TRUSTED};

/// The keys that a source may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trust {
    /// A file in the working directory: neither [`CODE`] nor [`TRUSTED`] values.
    WorkingDirectory,
    /// A variable: no [`CODE`] values.
    Environment,
    /// Other files and the program: all values.
    Full,
}

/// The reason why a value cannot be deserialized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The struct has no such key.
    Unknown { valid: &'static [&'static str] },
    /// The value is invalid. The text has the valid values.
    Invalid(String),
    /// The source may not set this value.
    Refused,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Self::Invalid(message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        match unexpected {
            Unexpected::NewtypeStruct => Self::Refused,
            _ => Self::Invalid(words_for(expected.to_string())),
        }
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Invalid(words_for(expected.to_string()))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::Invalid(words_for(expected.to_string()))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::Invalid(OneOf(expected).to_string())
    }

    fn unknown_field(_: &str, valid: &'static [&'static str]) -> Self {
        Self::Unknown { valid }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Invalid(format!("a table with the key {field}"))
    }
}

/// Replaces serde's names of standard types by plain words.
fn words_for(expected: String) -> String {
    let whole = |least: &dyn Display, most: &dyn Display| format!("a whole number from {least} to {most}");
    match expected.as_str() {
        "u8" => whole(&0, &u8::MAX),
        "u16" => whole(&0, &u16::MAX),
        "u32" => whole(&0, &u32::MAX),
        "u64" | "usize" => whole(&0, &u64::MAX),
        "i32" => whole(&i32::MIN, &i32::MAX),
        "i64" | "isize" => whole(&i64::MIN, &i64::MAX),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" => "a text".to_owned(),
        "path string" => "a path".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        _ => expected,
    }
}

/// A value of a source.
#[derive(Clone, Copy)]
pub(crate) struct Strict<'a> {
    pub(crate) value: &'a Value,
    pub(crate) trust: Trust,
}

impl<'a> IntoDeserializer<'a, Fault> for Strict<'a> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Strict<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let with = |value| Self { value, trust: self.trust };
        match &self.value.kind {
            ValueKind::Nil => visitor.visit_unit(),
            ValueKind::Boolean(flag) => visitor.visit_bool(*flag),
            ValueKind::I64(number) => visitor.visit_i64(*number),
            ValueKind::U64(number) => visitor.visit_u64(*number),
            ValueKind::I128(number) => visitor.visit_i128(*number),
            ValueKind::U128(number) => visitor.visit_u128(*number),
            ValueKind::Float(number) => visitor.visit_f64(*number),
            ValueKind::String(text) => visitor.visit_borrowed_str(text),
            ValueKind::Array(list) => visitor.visit_seq(SeqDeserializer::new(list.iter().map(with))),
            ValueKind::Table(table) => {
                let entries = table.iter().map(|(key, value)| (key.as_str(), with(value)));
                visitor.visit_map(MapDeserializer::new(entries))
            }
        }
    }

    /// Treats an empty text as `None`, because an empty variable is an unset one.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.value.kind {
            ValueKind::Nil => visitor.visit_none(),
            ValueKind::String(text) if text.is_empty() => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let needed = match name {
            CODE => Trust::Full,
            TRUSTED => Trust::Environment,
            _ => Trust::WorkingDirectory,
        };
        if self.trust >= needed { visitor.visit_newtype_struct(self) } else { self.deserialize_any(visitor) }
    }

    /// Accepts unit variants only; no settings have variants with fields.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.value.kind {
            ValueKind::String(word) => StrDeserializer::new(word).deserialize_enum(name, variants, visitor),
            _ => Err(Fault::Invalid(OneOf(variants).to_string())),
        }
    }

    serde_core::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    fn read<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, Fault> {
        T::deserialize(Strict { value, trust: Trust::Full })
    }

    #[test]
    fn values_are_not_converted() {
        for (kind, valid) in [
            (ValueKind::Float(1.5), "a whole number from 0 to 4294967295"),
            (ValueKind::Boolean(true), "a whole number from 0 to 4294967295"),
            (ValueKind::String("1".to_owned()), "a whole number from 0 to 4294967295"),
            (ValueKind::I64(-1), "a whole number from 0 to 4294967295"),
        ] {
            assert_eq!(read::<u32>(&Value::new(None, kind)), Err(Fault::Invalid(valid.to_owned())));
        }
        let number = Value::new(None, 1);
        assert_eq!(read::<bool>(&number), Err(Fault::Invalid("true or false".to_owned())));
        assert_eq!(read::<String>(&number), Err(Fault::Invalid("a text".to_owned())));
        assert_eq!(read(&number), Ok(1_u32));
        assert_eq!(read::<Option<String>>(&Value::new(None, "")), Ok(None));
    }

    #[test]
    fn derived_structs_and_enumerations_are_read() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Word {
            Here,
            There,
        }
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Place {
            word: Word,
        }
        let place = |key: &str, word: &str| {
            Value::new(None, ValueKind::from(config::Map::from([(key.to_owned(), Value::new(None, word))])))
        };
        assert_eq!(read(&place("word", "there")), Ok(Place { word: Word::There }));
        let valid = "one of \"here\", \"there\"".to_owned();
        assert_eq!(read::<Place>(&place("word", "nowhere")), Err(Fault::Invalid(valid)));
        assert_eq!(read::<Place>(&place("wrod", "here")), Err(Fault::Unknown { valid: &["word"] }));
    }
}
