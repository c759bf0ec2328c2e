//! One key of a section: how a value is read into it and shown.

use config::{Value, ValueKind};

/// A type that a key may hold.
pub(crate) trait Setting: Sized {
    /// What is valid, as it reads after "valid is".
    const EXPECTED: &'static str;

    /// Reads a value from a file, the environment (always text) or a program; `None` is a refusal.
    fn read(value: &Value) -> Option<Self>;

    /// The value as text, in a form that [`Setting::read`] accepts.
    fn text(&self) -> String;
}

/// One key of the section `S`.
pub(crate) struct Field<S> {
    pub(crate) name: &'static str,
    /// An older name of the same key.
    pub(crate) alias: Option<&'static str>,
    pub(crate) expected: &'static str,
    /// Reads the value into the section; `None` refuses it and leaves the section as it was.
    pub(crate) set: fn(&mut S, &Value) -> Option<()>,
    pub(crate) text: fn(&S) -> String,
}

/// A section with a fixed set of keys.
pub(crate) trait Section: Default + 'static {
    const FIELDS: &'static [Field<Self>];

    /// The field of this name or alias.
    fn field(name: &str) -> Option<&'static Field<Self>> {
        Self::FIELDS.iter().find(|field| field.name == name || field.alias == Some(name))
    }
}

/// Writes a [`Field`]: `field!(name)`, with an older name `field!(name, alias "old")`, with a further
/// condition `field!(name, "what is valid" if |value| condition)`, or both in that order.
macro_rules! field {
    ($name:ident $(, alias $alias:literal)?) => {
        crate::field::Field {
            name: stringify!($name),
            alias: crate::field::field!(@alias $($alias)?),
            expected: crate::field::expected(|section: &Self| &section.$name),
            set: |section, value| {
                section.$name = crate::field::Setting::read(value)?;
                Some(())
            },
            text: |section| crate::field::Setting::text(&section.$name),
        }
    };
    ($name:ident $(, alias $alias:literal)?, $expected:literal if |$value:ident| $condition:expr) => {
        crate::field::Field {
            name: stringify!($name),
            alias: crate::field::field!(@alias $($alias)?),
            expected: $expected,
            set: |section, value| {
                let $value = crate::field::Setting::read(value)?;
                if !$condition {
                    return None;
                }
                section.$name = $value;
                Some(())
            },
            text: |section| crate::field::Setting::text(&section.$name),
        }
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
}
pub(crate) use field;

/// What the type of a field expects; the accessor only tells the type.
pub(crate) const fn expected<S, T: Setting>(_accessor: fn(&S) -> &T) -> &'static str {
    T::EXPECTED
}

/// Declares an enumeration whose values are words, read and shown by exactly those words.
macro_rules! words {
    (
        $(#[$attribute:meta])*
        $name:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $word:literal $(| $synonym:literal)*),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum $name {
            $(
                $(#[$variant_attribute])*
                #[serde(rename = $word $(, alias = $synonym)*)]
                $variant,
            )+
        }

        impl $name {
            /// The word for it in settings.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The one of this word.
            pub(crate) fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word $(| $synonym)* => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl crate::field::Setting for $name {
            const EXPECTED: &'static str = concat!("one of", $(" \"", $word, "\""),+);

            fn read(value: &config::Value) -> Option<Self> {
                Self::from_word(crate::field::text_of(value)?)
            }

            fn text(&self) -> String {
                self.as_str().to_owned()
            }
        }
    };
}
pub(crate) use words;

/// The text of a value that is text, without surrounding blanks.
pub(crate) fn text_of(value: &Value) -> Option<&str> {
    match &value.kind {
        ValueKind::String(text) => Some(text.trim()),
        _ => None,
    }
}

/// The elements of a list, or the comma-separated parts of a text.
pub(crate) fn elements_of(value: &Value) -> Option<Vec<Value>> {
    match &value.kind {
        ValueKind::Array(list) => Some(list.clone()),
        ValueKind::String(text) if text.trim().is_empty() => Some(Vec::new()),
        ValueKind::String(text) => Some(text.split(',').map(|part| Value::new(None, part.trim())).collect()),
        ValueKind::I64(_) | ValueKind::U64(_) => Some(vec![value.clone()]),
        _ => None,
    }
}

impl Setting for u64 {
    const EXPECTED: &'static str = "a whole number from 0 to 18446744073709551615";

    fn read(value: &Value) -> Option<Self> {
        match &value.kind {
            ValueKind::I64(number) => (*number).try_into().ok(),
            ValueKind::U64(number) => Some(*number),
            ValueKind::String(text) => {
                let text = text.trim();
                // `parse` would take a leading plus sign.
                let plain = text.bytes().all(|byte| byte.is_ascii_digit());
                plain.then(|| text.parse().ok()).flatten()
            }
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Setting for u32 {
    const EXPECTED: &'static str = "a whole number from 0 to 4294967295";

    fn read(value: &Value) -> Option<Self> {
        u64::read(value)?.try_into().ok()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Setting for bool {
    const EXPECTED: &'static str = "true or false (or yes, no, on, off)";

    fn read(value: &Value) -> Option<Self> {
        match &value.kind {
            ValueKind::Boolean(flag) => Some(*flag),
            ValueKind::String(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(true),
                "false" | "no" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Setting for crate::ByteSize {
    const EXPECTED: &'static str =
        "a number of bytes such as 65536 or \"64KiB\" (units B, KiB, MiB, GiB, TiB or K, M, G, T)";

    fn read(value: &Value) -> Option<Self> {
        match &value.kind {
            ValueKind::String(text) => text.parse().ok(),
            _ => u64::read(value).map(Self::new),
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Setting for String {
    const EXPECTED: &'static str = "a text that is not empty";

    fn read(value: &Value) -> Option<Self> {
        let text = text_of(value)?;
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl Setting for Option<String> {
    const EXPECTED: &'static str = "a text (empty for none)";

    fn read(value: &Value) -> Option<Self> {
        let text = text_of(value)?;
        Some((!text.is_empty()).then(|| text.to_owned()))
    }

    fn text(&self) -> String {
        self.clone().unwrap_or_default()
    }
}
