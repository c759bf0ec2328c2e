//! Settings of providers, pools and the other parts of umf, which files, variables and the program
//! set.
//!
//! [`settings!`](crate::settings!) defines a struct with its defaults, documentation, ranges, older
//! and removed names. [`pool_settings!`](crate::pool_settings!) adds the settings that every pool
//! has. [`words!`](crate::words!) defines an enumeration whose values are words. All of them need
//! only `serde_core`. The crate `umf-config` reads such a struct from files and variables: it takes
//! the keys from [`Settings::KEYS`] and deserializes.
//!
//! ```
//! use umf_core::settings::ByteSize;
//!
//! umf_core::settings! {
//!     /// Settings of a pool of ours.
//!     pub struct StackSettings {
//!         /// The largest size of the stack in bytes.
//!         pub depth | "size": usize as ByteSize = 1 << 20, "a number of bytes above 0" if |bytes| *bytes > 0;
//!         /// Whether the stack grows downwards.
//!         pub downwards: bool = true;
//!     }
//!     removed { "upwards" => "set downwards = false" }
//! }
//!
//! let settings = StackSettings::new().depth(4096);
//! assert!(settings.downwards && settings.invalid().is_none());
//! assert_eq!(settings.depth(0).invalid(), Some(("depth", "a number of bytes above 0")));
//! ```

mod byte_size;
mod forms;

use core::fmt;

#[doc(hidden)]
pub use serde_core as serde;

pub use byte_size::{ByteSize, ParseByteSizeError};
pub use forms::{
    Auto, CODE, Code, Form, Microseconds, Milliseconds, Numbers, OneOf, TRUSTED, Trusted, read_text, refused,
};

/// A key: its name, documentation and older names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name.
    pub name: &'static str,
    /// The lines of its documentation, each with a leading space.
    pub doc: &'static str,
    /// Older names, which are accepted too.
    pub older: &'static [&'static str],
}

/// A struct of settings. [`settings!`](crate::settings!) implements this.
///
/// Its `Deserialize` must accept a map with any subset of the keys, and reject other keys with
/// `unknown_field`. With serde's derive, that is `#[serde(default, deny_unknown_fields)]`.
pub trait Settings: serde::de::DeserializeOwned + serde::Serialize + Default + 'static {
    /// All keys, in the order of the documentation.
    const KEYS: &'static [Key];
    /// Removed keys, each with what to do instead.
    const REMOVED: &'static [(&'static str, &'static str)] = &[];
}

crate::settings! {
    /// The settings of a kind without keys.
    pub struct NoSettings {}
}

/// Writes the quoted words, for a message "valid is ...".
impl fmt::Display for OneOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of")?;
        self.0
            .iter()
            .enumerate()
            .try_for_each(|(index, word)| write!(f, "{} {word:?}", if index == 0 { "" } else { "," }))
    }
}

/// Defines a settings struct: see [the module](mod@crate::settings).
///
/// A key is `/// documentation`, a field, optionally another name (`("name_ms")`) and older names
/// (`| "older"`), a type, optionally the [`Form`] in which settings write the type (`as ByteSize`),
/// a default, and optionally a range (`, "the valid values" if |value| condition`, where `value` is
/// a reference). `values` are fields that only the program sets. Each key and value has a setter
/// with the name of the field. `parts` are fields without a setter.
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $key_vis:vis $field:ident $(($key:literal))? $(| $older:literal)* : $type:ty $(as $form:ty)? = $default:expr
                $(, $valid:literal if |$value:ident| $condition:expr)? ;
            )*
        }
        $(values {
            $($(#[doc = $value_doc:literal])+ $value_vis:vis $value_name:ident : $value_type:ty = $value_default:expr;)*
        })?
        $(parts {
            $($(#[$part_meta:meta])* $part_vis:vis $part:ident : $part_type:ty = $part_default:expr;)*
        })?
        $(removed { $($removed:literal => $instead:literal),+ $(,)? })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $($(#[doc = $doc])+ $key_vis $field: $type,)*
            $($($(#[doc = $value_doc])+ $value_vis $value_name: $value_type,)*)?
            $($($(#[$part_meta])* $part_vis $part: $part_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* $($($value_name: $value_default,)*)? $($($part: $part_default,)*)? }
            }
        }

        #[allow(dead_code, missing_docs, reason = "not every struct is set by the program")]
        impl $name {
            /// Returns the defaults.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            $(
                $(#[doc = $doc])+
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*

            $($(
                $(#[doc = $value_doc])+
                #[must_use]
                pub fn $value_name(mut self, $value_name: $value_type) -> Self {
                    self.$value_name = $value_name;
                    self
                }
            )*)?

            /// Returns the first key whose value is out of range, and the valid values.
            #[must_use]
            pub fn invalid(&self) -> Option<(&'static str, &'static str)> {
                $($crate::__range!(
                    (self.$field) ($crate::__key!($field $($key)?)) $($valid if |$value| $condition)?
                );)*
                None
            }
        }

        impl $crate::settings::Settings for $name {
            const KEYS: &'static [$crate::settings::Key] = &[$($crate::settings::Key {
                name: $crate::__key!($field $($key)?),
                doc: concat!($($doc, "\n"),+),
                older: &[$($older),*],
            }),*];
            const REMOVED: &'static [(&'static str, &'static str)] = &[$($(($removed, $instead)),+)?];
        }

        impl $crate::settings::serde::Serialize for $name {
            fn serialize<S: $crate::settings::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                #[allow(unused_imports, unused_mut)]
                {
                    use $crate::settings::Settings as _;
                    use $crate::settings::serde::ser::SerializeStruct as _;
                    let mut state = serializer.serialize_struct(stringify!($name), Self::KEYS.len())?;
                    $(state.serialize_field(
                        $crate::__key!($field $($key)?),
                        &<$crate::__form!($type $(as $form)?) as $crate::settings::Form<$type>>::of(&self.$field),
                    )?;)*
                    state.end()
                }
            }
        }

        impl<'de> $crate::settings::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::settings::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use $crate::settings::serde::de;
                struct Visitor;
                const NAMES: &[&str] = &[$($crate::__key!($field $($key)?)),*];
                impl<'de> de::Visitor<'de> for Visitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                        f.write_str("a table of keys and values")
                    }

                    #[allow(unused_mut, unused_variables, unreachable_code, clippy::never_loop)]
                    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut settings = $name::default();
                        while let Some(key) = map.next_key::<String>()? {
                            $(if key == $crate::__key!($field $($key)?) {
                                let form: $crate::__form!($type $(as $form)?) = map.next_value()?;
                                settings.$field = $crate::settings::Form::value(form);
                                $crate::__refuse!((settings.$field) $($valid if |$value| $condition)?);
                                continue;
                            })*
                            return Err(de::Error::unknown_field(&key, NAMES));
                        }
                        Ok(settings)
                    }
                }
                deserializer.deserialize_struct(stringify!($name), NAMES, Visitor)
            }
        }
    };
}

/// Defines the settings struct of a pool: [`settings!`](crate::settings!) with the fields that
/// every pool has: `memory_limit`, `on_free`, `max_held`, `name`, `shared_limit` and
/// `out_of_memory`, each with a setter.
///
/// The keys are followed by the type of the name, which must be `From<&str>`, and the default name.
/// Further `values` and `parts` may follow.
///
/// ```
/// umf_core::pool_settings! {
///     /// Settings of a pool of ours.
///     pub struct StackSettings {
///         /// Whether the stack grows downwards.
///         pub downwards: bool = true;
///     }
///     name: String = "stack"
/// }
///
/// let settings = StackSettings::new().name("mine").memory_limit(1 << 20);
/// assert_eq!((settings.name.as_str(), settings.memory_limit), ("mine", 1 << 20));
/// ```
#[macro_export]
macro_rules! pool_settings {
    (
        $(#[$meta:meta])*
        $vis:vis struct $settings:ident { $($keys:tt)* }
        name: $name:ty = $default_name:literal
        $(values { $($values:tt)* })?
        $(parts { $($parts:tt)* })?
    ) => {
        $crate::settings! {
            $(#[$meta])*
            $vis struct $settings { $($keys)* }
            values {
                /// The limit of the bytes that the pool reserves from its provider; 0 is unlimited.
                /// Default: 0.
                pub(crate) memory_limit: u64 = 0;
                /// What happens to the contents of a block that is freed while other processes have
                /// it open. In both cases its address is not reused before they have closed it.
                /// Default: `Hold`.
                pub(crate) on_free: $crate::deferred::OnFree = $crate::deferred::OnFree::Hold;
                /// The limit of the bytes of freed memory that other processes have open; 0 is
                /// unlimited. Above it, allocations fail with
                /// [`Error::HeldLimit`](umf_core::Error::HeldLimit). Held bytes count against the
                /// memory limit too. Default: 0.
                pub(crate) max_held: u64 = 0;
                $($($values)*)?
            }
            parts {
                pub(crate) name: $name = <$name>::from($default_name);
                pub(crate) shared_limit: Option<$crate::limit::SharedLimitRef> = None;
                pub(crate) out_of_memory: Option<std::sync::Arc<dyn $crate::out_of_memory::OnOutOfMemory>> = None;
                $($($parts)*)?
            }
        }

        impl $settings {
            #[doc = concat!("Sets the name of the pool, for statistics and logs. Default: `", $default_name, "`.")]
            #[must_use]
            pub fn name(mut self, name: impl AsRef<str>) -> Self {
                self.name = <$name>::from(name.as_ref());
                self
            }

            /// Sets a limit that the pool shares with others: an `Arc<SharedLimit>` or a
            /// `&'static SharedLimit`. Default: none.
            #[must_use]
            pub fn shared_limit(mut self, limit: impl Into<$crate::limit::SharedLimitRef>) -> Self {
                self.shared_limit = Some(limit.into());
                self
            }

            /// Sets the callback that runs before an allocation fails for lack of memory
            /// ([`umf_core::out_of_memory`]). Default: none.
            #[must_use]
            pub fn out_of_memory(mut self, callback: impl $crate::out_of_memory::OnOutOfMemory + 'static) -> Self {
                self.out_of_memory = Some(std::sync::Arc::new(callback));
                self
            }

            /// Sets the name and the limits of a factory's request.
            #[allow(dead_code, reason = "not every pool has a factory")]
            pub(crate) fn requested(mut self, request: &$crate::PoolRequest<'_>) -> Self {
                self.memory_limit = request.memory_limit;
                self.shared_limit.clone_from(&request.shared_limit);
                self.name(request.name)
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __form {
    ($type:ty) => {
        $type
    };
    ($type:ty as $form:ty) => {
        $form
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __range {
    (($field:expr) ($key:expr)) => {};
    (($field:expr) ($key:expr) $valid:literal if |$value:ident| $condition:expr) => {
        let $value = &$field;
        if !$condition {
            return Some(($key, $valid));
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __refuse {
    (($field:expr)) => {};
    (($field:expr) $valid:literal if |$value:ident| $condition:expr) => {
        let $value = &$field;
        if !$condition {
            return Err(de::Error::invalid_value(de::Unexpected::Other("out of range"), &$valid));
        }
    };
}

/// Declares an enumeration whose values are words in settings: `Variant = "word"`, with further
/// words that are accepted as `| "synonym"`. It has `as_str`, `Display`, `FromStr`, `ALL` and
/// `WORDS`.
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $word:literal $(| $synonym:literal)*),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        #[allow(dead_code, reason = "not every enumeration is shown and listed")]
        impl $name {
            /// All values.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];
            /// The words of all values.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Returns the word for the value in settings.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl core::str::FromStr for $name {
            type Err = $crate::settings::OneOf;

            fn from_str(word: &str) -> Result<Self, $crate::settings::OneOf> {
                match word {
                    $($word $(| $synonym)* => Ok(Self::$variant),)+
                    _ => Err($crate::settings::OneOf(Self::WORDS)),
                }
            }
        }

        impl $crate::settings::serde::Serialize for $name {
            fn serialize<S: $crate::settings::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> $crate::settings::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::settings::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::settings::OneOf(Self::WORDS).read(deserializer)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    words! {
        /// A direction.
        #[derive(Default)]
        enum Direction {
            /// Up.
            #[default]
            Up = "up",
            /// Down.
            Down = "down" | "downwards",
        }
    }

    settings! {
        /// Every feature of the macro.
        struct All {
            /// A size.
            pub(crate) size | "length" | "extent": usize as ByteSize = 64 << 10, "below 1MiB" if |size| *size < 1 << 20;
            /// A time.
            /// On two lines.
            pub wait("wait_ms"): Duration as Milliseconds = Duration::from_millis(5);
            /// A direction.
            direction: Direction = Direction::Up;
        }
        parts {
            /// Nothing sets it.
            label: &'static str = "all";
        }
        removed { "width" => "use size" }
    }

    #[test]
    fn keys_have_names_documentation_and_older_names() {
        let [size, wait, _] = All::KEYS else { panic!("three keys") };
        assert_eq!((size.name, size.older), ("size", &["length", "extent"][..]));
        assert_eq!((wait.name, wait.doc), ("wait_ms", " A time.\n On two lines.\n"));
        assert_eq!(All::REMOVED, [("width", "use size")]);
    }

    #[test]
    fn macro_defines_defaults_setters_and_ranges() {
        let all = All::new();
        assert_eq!((all.size, all.label, all.direction), (64 << 10, "all", Direction::Up));
        assert_eq!(all.invalid(), None);
        assert_eq!(all.size(1 << 20).invalid(), Some(("size", "below 1MiB")));
    }

    #[test]
    fn words_are_parsed_and_displayed() {
        assert_eq!("downwards".parse(), Ok(Direction::Down));
        assert_eq!("left".parse::<Direction>().unwrap_err().to_string(), "one of \"up\", \"down\"");
        assert_eq!((Direction::Down.to_string(), Direction::ALL.len()), ("down".to_owned(), 2));
    }
}
