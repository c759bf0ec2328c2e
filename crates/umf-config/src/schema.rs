//! What settings there can be: sections, sets of several kinds, and variables of their own.

use std::collections::BTreeMap;

use config::{Config, Map, Source, Value, ValueKind};
use serde_core::de::DeserializeOwned;
use umf_core::settings::{Key, Settings};

use crate::strict::{Fault, Strict, Trust};

/// Keys and values.
pub(crate) type Tree = Map<String, Value>;

/// The keys of a settings struct, without its type.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(crate) keys: &'static [Key],
    pub(crate) removed: &'static [(&'static str, &'static str)],
    check: fn(Strict<'_>) -> Result<(), Fault>,
    defaults: fn() -> Tree,
}

impl Shape {
    /// The keys of `T`.
    #[must_use]
    pub const fn of<T: Settings>() -> Self {
        Self { keys: T::KEYS, removed: T::REMOVED, check: check::<T>, defaults: defaults::<T> }
    }

    /// A single value instead of keys.
    const fn of_value<T: DeserializeOwned>() -> Self {
        Self { keys: &[], removed: &[], check: check::<T>, defaults: Tree::new }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.keys.iter().any(|key| key.name == name)
    }

    /// The present name of a key that is known by an older one.
    pub(crate) fn present_name(&self, older: &str) -> Option<&'static str> {
        self.keys.iter().find(|key| key.older.contains(&older)).map(|key| key.name)
    }

    /// Checks one value.
    pub(crate) fn check_value(&self, value: &Value, trust: Trust) -> Result<(), Fault> {
        (self.check)(Strict { value, trust })
    }

    /// Checks one key: a table of it alone is a whole struct.
    pub(crate) fn check_key(&self, name: &str, value: &Value, trust: Trust) -> Result<(), Fault> {
        let table = Tree::from([(name.to_owned(), value.clone())]);
        self.check_value(&Value::new(None, ValueKind::Table(table)), trust)
    }

    /// The defaults. Empty tables are left out.
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

/// Sets of settings, each with a name and a kind: `[pool.<name>]`.
#[derive(Clone, Debug)]
pub struct Sets {
    /// What all kinds share; one of the keys is `kind`.
    pub common: Vec<Shape>,
    /// The kinds, and the keys of each.
    pub kinds: BTreeMap<String, Shape>,
    /// The kind of a set for which nothing says another.
    pub default_kind: &'static str,
    /// The set from which the others inherit what they do not set, if there is one. It may have the
    /// keys of all kinds.
    pub defaults: Option<&'static str>,
    /// Kinds that other builds of the program know. A set of such a kind is kept unread.
    pub absent: Vec<&'static str>,
    /// Sets that are there without being declared, and what they have where no source sets the key.
    /// That is stronger than the set of defaults.
    pub presets: Vec<(&'static str, Vec<(&'static str, ValueKind)>)>,
    /// Whether a set with the name of a kind is of that kind unless it says otherwise.
    pub kind_by_name: bool,
}

/// What stands below one name at the top of a file.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    Section(Shape),
    Sets(Sets),
    /// Names and a value for each.
    Values(Shape),
}

/// The name of a group, the comment before it in the listing, and the group.
type NamedGroup = (&'static str, &'static str, Group);

/// Keys, each with the text that a variable sets it to.
pub type KeyTexts = Vec<(String, String)>;

/// A variable of an earlier library, and what it sets.
#[derive(Clone, Copy, Debug)]
pub struct LegacyVariable {
    /// The variable.
    pub name: &'static str,
    /// The keys that its text sets, with a text for each; `None` for a text that means nothing.
    pub read: fn(&str) -> Option<KeyTexts>,
    /// What a text that means nothing sets.
    pub otherwise: &'static [(&'static str, &'static str)],
    /// What becomes of such a text, in words.
    pub effect: &'static str,
    /// What is valid, in words.
    pub expected: &'static str,
}

/// What settings there can be.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    pub(crate) groups: Vec<NamedGroup>,
    pub(crate) older: Vec<LegacyVariable>,
    pub(crate) elsewhere: Vec<(&'static str, &'static str)>,
    pub(crate) unread: Vec<&'static str>,
}

impl Schema {
    /// Nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { groups: Vec::new(), older: Vec::new(), elsewhere: Vec::new(), unread: Vec::new() }
    }

    /// Adds the section `[name]`. `about` is the comment before it in the listing.
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
    pub fn older(mut self, variable: LegacyVariable) -> Self {
        self.older.push(variable);
        self
    }

    /// Adds a variable that another part of the program obeys, with a note for people.
    #[must_use]
    pub fn elsewhere(mut self, variable: &'static str, note: &'static str) -> Self {
        self.elsewhere.push((variable, note));
        self
    }

    /// Adds a section that other builds of the program read. It may stand in files and variables,
    /// and is ignored.
    #[must_use]
    pub fn unread(mut self, name: &'static str) -> Self {
        self.unread.push(name);
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
    /// All shapes: the common one first.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        match self {
            Self::Section(shape) => vec![*shape],
            Self::Sets(sets) => sets.shapes(sets.kinds.values()),
            Self::Values(_) => Vec::new(),
        }
    }

    /// Whether a key has this name, or had it.
    pub(crate) fn knows(&self, name: &str) -> bool {
        let shapes = self.shapes();
        shapes.iter().any(|shape| shape.has(name) || shape.present_name(name).is_some())
    }
}

impl Sets {
    pub(crate) fn shapes<'a>(&self, kinds: impl IntoIterator<Item = &'a Shape>) -> Vec<Shape> {
        self.common.iter().copied().chain(kinds.into_iter().copied()).collect()
    }

    /// The kind of a set that does not say one.
    pub(crate) fn kind_of_name(&self, name: &str) -> &str {
        let mut kinds = self.kinds.keys().map(String::as_str).chain(self.absent.iter().copied());
        let by_name = kinds.find(|kind| self.kind_by_name && *kind == name);
        by_name.unwrap_or(self.default_kind)
    }

    /// What the set `name` has before any source is read.
    pub(crate) fn preset(&self, name: &str) -> impl Iterator<Item = (&'static str, &ValueKind)> {
        let found = self.presets.iter().filter(move |(of, _)| *of == name);
        found.flat_map(|(_, keys)| keys.iter().map(|(key, value)| (*key, value)))
    }

    /// The kind of a set that no source sets, before the set of defaults counts.
    pub(crate) fn preset_kind(&self, name: &str) -> Option<&str> {
        self.preset(name).find_map(|(key, value)| match value {
            ValueKind::String(kind) if key == "kind" => Some(kind.as_str()),
            _ => None,
        })
    }

    /// Names of sets that are there without being declared.
    pub(crate) fn built_in(&self) -> Vec<&str> {
        let kinds = self.kinds.keys().filter(|_| self.kind_by_name).map(String::as_str);
        kinds.chain(self.defaults).chain(self.presets.iter().map(|(name, _)| *name)).collect()
    }
}

/// A name that a set or a value may have.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// The environment variable that sets `key`: `ipc.exchange` is `UMF_IPC_EXCHANGE`.
#[must_use]
pub fn variable_name(key: &str) -> String {
    format!("UMF_{}", key.replace(['.', '-'], "_").to_uppercase())
}

/// The known one that is most like `given`, where one is alike at all.
pub(crate) fn closest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // Distance is quadratic in the length; nothing that is alike is this long.
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
