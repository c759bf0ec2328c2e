//! A value of any shape: what a provider kind that this crate does not know is handed untouched.

use std::collections::BTreeMap;

use config::ValueKind;
use serde::{Deserialize, Serialize};

/// A boolean, number, text, list or table, as in TOML or JSON (without null).
///
/// Whole numbers above `i64::MAX` cannot be written in TOML; from a program they are carried as their
/// decimal text, which every numeric key accepts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Value {
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text; dates and times of TOML arrive as text too.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// A table.
    Table(BTreeMap<String, Self>),
}

impl Value {
    /// The text, where the value is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value that the configuration reader holds.
    pub(crate) fn from_config(value: &config::Value) -> Self {
        match &value.kind {
            ValueKind::Nil => Self::Text(String::new()),
            ValueKind::Boolean(flag) => Self::Boolean(*flag),
            ValueKind::I64(number) => Self::Integer(*number),
            ValueKind::U64(number) => Self::from(*number),
            ValueKind::I128(number) => Self::Text(number.to_string()),
            ValueKind::U128(number) => Self::Text(number.to_string()),
            ValueKind::Float(number) => Self::Float(*number),
            ValueKind::String(text) => Self::Text(text.clone()),
            ValueKind::Array(list) => Self::List(list.iter().map(Self::from_config).collect()),
            ValueKind::Table(table) => Self::Table(
                table.iter().map(|(key, value)| (key.clone(), Self::from_config(value))).collect(),
            ),
        }
    }

    /// The value as the configuration reader holds it, marked with where it came from.
    pub(crate) fn into_config(self, uri: &String) -> config::Value {
        let kind = match self {
            Self::Boolean(flag) => ValueKind::Boolean(flag),
            Self::Integer(number) => ValueKind::I64(number),
            Self::Float(number) => ValueKind::Float(number),
            Self::Text(text) => ValueKind::String(text),
            Self::List(list) => {
                ValueKind::Array(list.into_iter().map(|value| value.into_config(uri)).collect())
            }
            Self::Table(table) => ValueKind::Table(
                table.into_iter().map(|(key, value)| (key, value.into_config(uri))).collect(),
            ),
        };
        config::Value::new(Some(uri), kind)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Boolean(flag)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        i64::try_from(number).map_or_else(|_| Self::Text(number.to_string()), Self::Integer)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<crate::ByteSize> for Value {
    fn from(size: crate::ByteSize) -> Self {
        Self::from(size.get())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Self>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl From<BTreeMap<String, Self>> for Value {
    fn from(table: BTreeMap<String, Self>) -> Self {
        Self::Table(table)
    }
}
