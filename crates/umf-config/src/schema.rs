//! [`Schema`]: the sections, keys and variables that settings can have, and their listing as a file.

use std::collections::BTreeMap;
use std::fmt::Write;

use config::{Config, Map, Source, Value, ValueKind};
use serde_core::de::DeserializeOwned;
use umf_core::settings::{Key, Settings};

use crate::loaded::inline;
use crate::strict::{Fault, Strict, Trust};

/// A table of keys and values.
pub(crate) type Tree = Map<String, Value>;

/// The keys of a settings struct, with its type erased.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(crate) keys: &'static [Key],
    pub(crate) removed: &'static [(&'static str, &'static str)],
    check: fn(Strict<'_>) -> Result<(), Fault>,
    defaults: fn() -> Tree,
}

impl Shape {
    /// Returns the keys of `T`.
    #[must_use]
    pub const fn of<T: Settings>() -> Self {
        Self { keys: T::KEYS, removed: T::REMOVED, check: check::<T>, defaults: defaults::<T> }
    }

    /// Returns the shape of a single value of type `T`.
    const fn of_value<T: DeserializeOwned>() -> Self {
        Self { keys: &[], removed: &[], check: check::<T>, defaults: Tree::new }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.keys.iter().any(|key| key.name == name)
    }

    /// Returns the current name of a key from an older name.
    pub(crate) fn current_name(&self, older: &str) -> Option<&'static str> {
        self.keys.iter().find(|key| key.older.contains(&older)).map(|key| key.name)
    }

    /// Checks one value.
    pub(crate) fn check_value(&self, value: &Value, trust: Trust) -> Result<(), Fault> {
        (self.check)(Strict { value, trust })
    }

    /// Checks one key, by deserializing a table that has only this key.
    pub(crate) fn check_key(&self, name: &str, value: &Value, trust: Trust) -> Result<(), Fault> {
        let table = Tree::from([(name.to_owned(), value.clone())]);
        self.check_value(&Value::new(None, ValueKind::Table(table)), trust)
    }

    /// Returns the defaults, without empty tables.
    pub(crate) fn defaults(&self) -> Tree {
        (self.defaults)()
    }
}

fn check<T: DeserializeOwned>(value: Strict<'_>) -> Result<(), Fault> {
    T::deserialize(value).map(drop)
}

fn defaults<T: Settings>() -> Tree {
    let config = Config::try_from(&T::default());
    config.and_then(|config| config.collect()).unwrap_or_default()
}

/// A group of named sets of settings, each of a kind: `[pool.<name>]`.
#[derive(Clone, Debug)]
pub struct Sets {
    /// The keys that all kinds have. One of them is `kind`.
    pub common: Vec<Shape>,
    /// The kinds, and the keys of each.
    pub kinds: BTreeMap<String, Shape>,
    /// The kind of a set by default.
    pub default_kind: &'static str,
    /// The set that has the defaults of the others, if there is one. It may have the keys of all
    /// kinds.
    pub defaults: Option<&'static str>,
    /// Kinds that only other builds of the program have. A set of such a kind is kept unchecked.
    pub unavailable: Vec<&'static str>,
    /// Sets that exist without being declared, and their values. A source overrides them; they
    /// override the set of defaults.
    pub presets: Vec<(&'static str, Vec<(&'static str, ValueKind)>)>,
    /// Whether a set with the name of a kind is of that kind by default.
    pub kind_by_name: bool,
}

/// A top-level table of a file.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    Section(Shape),
    Sets(Sets),
    /// A table of names, each with a value.
    Values(Shape),
}

/// The name of a group, its comment in the listing, and the group.
type NamedGroup = (&'static str, &'static str, Group);

/// Keys and their values as the texts of variables.
pub type KeyTexts = Vec<(String, String)>;

/// A variable of an earlier library, and the keys that it sets.
#[derive(Clone, Copy, Debug)]
pub struct LegacyVariable {
    /// The variable.
    pub name: &'static str,
    /// Parses the value: returns the keys that it sets, or `None` for an invalid value.
    pub read: fn(&str) -> Option<KeyTexts>,
    /// The keys that an invalid value sets.
    pub fallback: &'static [(&'static str, &'static str)],
    /// The effect of an invalid value, in words.
    pub effect: &'static str,
    /// The valid values, in words.
    pub expected: &'static str,
}

/// The sections, keys and variables that settings can have.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    pub(crate) groups: Vec<NamedGroup>,
    pub(crate) legacy: Vec<LegacyVariable>,
    pub(crate) recognised: Vec<(&'static str, &'static str)>,
    pub(crate) ignored: Vec<&'static str>,
}

impl Schema {
    /// Returns an empty schema.
    #[must_use]
    pub const fn new() -> Self {
        Self { groups: Vec::new(), legacy: Vec::new(), recognised: Vec::new(), ignored: Vec::new() }
    }

    /// Adds the section `[name]`. `about` is its comment in the listing.
    #[must_use]
    pub fn section<T: Settings>(mut self, name: &'static str, about: &'static str) -> Self {
        self.groups.push((name, about, Group::Section(Shape::of::<T>())));
        self
    }

    /// Adds the sets `[name.<set>]`.
    #[must_use]
    pub fn sets(mut self, name: &'static str, about: &'static str, sets: Sets) -> Self {
        self.groups.push((name, about, Group::Sets(sets)));
        self
    }

    /// Adds the table `[name]` of names that each have one value of type `T`.
    #[must_use]
    pub fn values<T: DeserializeOwned>(mut self, name: &'static str, about: &'static str) -> Self {
        self.groups.push((name, about, Group::Values(Shape::of_value::<T>())));
        self
    }

    /// Adds a variable of an earlier library.
    #[must_use]
    pub fn legacy(mut self, variable: LegacyVariable) -> Self {
        self.legacy.push(variable);
        self
    }

    /// Adds a variable that another part of the program uses, with a note for people.
    #[must_use]
    pub fn recognised(mut self, variable: &'static str, note: &'static str) -> Self {
        self.recognised.push((variable, note));
        self
    }

    /// Adds a section that only other builds of the program read. Files and variables may have it;
    /// it is ignored.
    #[must_use]
    pub fn ignored(mut self, name: &'static str) -> Self {
        self.ignored.push(name);
        self
    }

    pub(crate) fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|(known, ..)| *known == name).map(|(.., group)| group)
    }

    pub(crate) fn sets_of(&self, name: &str) -> Option<&Sets> {
        match self.group(name) {
            Some(Group::Sets(sets)) => Some(sets),
            _ => None,
        }
    }
}

impl Group {
    /// Returns all shapes, the common ones first.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        match self {
            Self::Section(shape) => vec![*shape],
            Self::Sets(sets) => sets.shapes(sets.kinds.values()),
            Self::Values(_) => Vec::new(),
        }
    }

    /// Returns whether a key has this name, or had it in an earlier version.
    pub(crate) fn has_key(&self, name: &str) -> bool {
        let shapes = self.shapes();
        shapes.iter().any(|shape| shape.has(name) || shape.current_name(name).is_some())
    }
}

impl Sets {
    pub(crate) fn shapes<'a>(&self, kinds: impl IntoIterator<Item = &'a Shape>) -> Vec<Shape> {
        self.common.iter().copied().chain(kinds.into_iter().copied()).collect()
    }

    /// Returns the default kind of the set `name`.
    pub(crate) fn kind_of_name(&self, name: &str) -> &str {
        let mut kinds = self.kinds.keys().map(String::as_str).chain(self.unavailable.iter().copied());
        let by_name = kinds.find(|kind| self.kind_by_name && *kind == name);
        by_name.unwrap_or(self.default_kind)
    }

    /// Returns the preset values of the set `name`.
    pub(crate) fn preset(&self, name: &str) -> impl Iterator<Item = (&'static str, &ValueKind)> {
        let found = self.presets.iter().filter(move |(of, _)| *of == name);
        found.flat_map(|(_, keys)| keys.iter().map(|(key, value)| (*key, value)))
    }

    /// Returns the preset kind of the set `name`.
    pub(crate) fn preset_kind(&self, name: &str) -> Option<&str> {
        self.preset(name).find_map(|(key, value)| match value {
            ValueKind::String(kind) if key == "kind" => Some(kind.as_str()),
            _ => None,
        })
    }

    /// Returns the names of the sets that exist without being declared.
    pub(crate) fn built_in(&self) -> Vec<&str> {
        let kinds = self.kinds.keys().filter(|_| self.kind_by_name).map(String::as_str);
        kinds.chain(self.defaults).chain(self.presets.iter().map(|(name, _)| *name)).collect()
    }
}

/// Returns whether `name` is a valid name of a set or value.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// Returns the environment variable that sets `key`: `UMF_IPC_EXCHANGE` for `ipc.exchange`.
#[must_use]
pub fn variable_name(key: &str) -> String {
    format!("UMF_{}", key.replace(['.', '-'], "_").to_uppercase())
}

/// Returns the known name that is most similar to `given`, if one is similar enough.
pub(crate) fn closest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // The distance is quadratic in the length, and no known name is this long.
    if given.len() > 200 {
        return None;
    }
    known
        .into_iter()
        .map(|key| (strsim::normalized_damerau_levenshtein(given, key), key))
        .filter(|(likeness, _)| *likeness > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key.to_owned())
}

impl Schema {
    /// Returns a settings file with every key and its default in a comment, after the comment
    /// `head`.
    #[must_use]
    pub fn listing(&self, head: &str) -> String {
        let mut out = String::new();
        write_comment(&mut out, head);
        for (group, about, form) in &self.groups {
            out.push('\n');
            write_comment(&mut out, about);
            match form {
                Group::Section(shape) => {
                    let _ = writeln!(out, "[{group}]");
                    write_keys(&mut out, shape, None);
                }
                Group::Values(_) => {
                    let _ = writeln!(out, "[{group}]");
                }
                Group::Sets(sets) => {
                    if let Some(defaults) = sets.defaults {
                        let _ = writeln!(out, "[{group}.{defaults}]");
                        sets.common.iter().for_each(|shape| write_keys(&mut out, shape, None));
                    }
                    for (kind, shape) in &sets.kinds {
                        let _ = writeln!(
                            out,
                            "\n# ---- kind {kind:?}{}",
                            if shape.keys.is_empty() { ": no keys of its own" } else { "" }
                        );
                        if sets.defaults.is_none() {
                            let _ = writeln!(out, "[{group}.{kind}]");
                            sets.common.iter().for_each(|shape| write_keys(&mut out, shape, Some(kind)));
                        }
                        write_keys(&mut out, shape, None);
                    }
                }
            }
        }
        out
    }
}

fn write_comment(out: &mut String, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "{}", format!("# {line}").trim_end());
    }
}

/// Writes the keys of a shape. Writing to a `String` cannot fail.
fn write_keys(out: &mut String, shape: &Shape, kind: Option<&str>) {
    let defaults: Tree = shape.defaults();
    let none = Value::new(None, ValueKind::Table(Tree::new()));
    for key in shape.keys {
        out.push('\n');
        for line in key.doc.lines() {
            let _ = writeln!(out, "{}", format!("#{line}").trim_end());
        }
        for older in key.older {
            let _ = writeln!(out, "# The older name {older} is accepted too.");
        }
        let value = match kind {
            Some(kind) if key.name == "kind" => format!("{kind:?}"),
            _ => inline(defaults.get(key.name).unwrap_or(&none)),
        };
        let _ = writeln!(out, "#{} = {value}", key.name);
    }
}
