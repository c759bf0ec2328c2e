//! [`Loaded`]: merged settings, as typed values and as rows of text, with their origins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Value, ValueKind};
use serde_core::de::DeserializeOwned;
use umf_core::settings::Settings;

use crate::check::{Kinds, fault_error, table};
use crate::environment::RecognisedVariable;
use crate::schema::{Group, Schema, Shape, Tree, variable_name};
use crate::strict::{Strict, Trust};
use crate::{Error, Origin, Warning};

/// All sources, checked and merged by a [`Loader`](crate::Loader).
#[derive(Clone, Debug)]
pub struct Loaded {
    pub(crate) schema: Schema,
    pub(crate) merged: Tree,
    pub(crate) kinds: Kinds,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) recognised: Vec<RecognisedVariable>,
}

/// One key of [`Loaded::rows`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Row {
    /// The key, such as `ipc.exchange`.
    pub key: String,
    /// The value, in the form of a variable; empty for none.
    pub value: String,
    /// The origin of the value.
    pub origin: Origin,
    /// The environment variable that would set it.
    pub variable: String,
    /// Whether the key belongs to a set of a kind that is unknown to this program. Such a set is
    /// not checked, and using it is an error.
    pub unread: bool,
}

/// The settings of one set, with those that it inherits.
#[derive(Clone, Debug)]
pub struct Set {
    key: String,
    kind: String,
    is_known: bool,
    tree: Tree,
}

impl Loaded {
    /// Returns the section `name`.
    ///
    /// # Errors
    /// [`Error::BadValue`] if values are valid one by one but not in combination.
    pub fn section<T: Settings>(&self, name: &str) -> Result<T, Error> {
        read(name, self.tree(name).unwrap_or(&Tree::new()))
    }

    /// Returns the names and values of the table `name`.
    ///
    /// # Errors
    /// As [`Loaded::section`].
    pub fn values<T: DeserializeOwned>(&self, name: &str) -> Result<BTreeMap<String, T>, Error> {
        let values = self.tree(name).into_iter().flatten().map(|(key, value)| {
            let strict = Strict { value, trust: Trust::Full };
            let read = T::deserialize(strict);
            Ok((key.clone(), read.map_err(|fault| fault_error(fault, &format!("{name}.{key}"), value))?))
        });
        values.collect()
    }

    /// Returns the names of the declared sets of a group.
    pub fn names(&self, group: &str) -> impl Iterator<Item = &str> {
        self.kinds.keys().filter(move |(of, _)| *of == group).map(|(_, name)| name.as_str())
    }

    /// Returns whether a source declares the set.
    #[must_use]
    pub fn declares(&self, group: &str, name: &str) -> bool {
        self.names(group).any(|known| known == name)
    }

    /// Returns the set `name`: declared keys override presets, and presets override the set of
    /// defaults.
    #[must_use]
    pub fn set(&self, group: &str, name: &str) -> Set {
        let key = format!("{group}.{name}");
        let Some(sets) = self.schema.sets_of(group) else {
            return Set { key, kind: String::new(), is_known: false, tree: Tree::new() };
        };
        let find = |name: &str| self.kinds.iter().find(|((of, known), _)| *of == group && known == name);
        let inherited = || sets.defaults.and_then(find);
        let found = find(name).map(|(_, kind)| kind.as_str()).or_else(|| sets.preset_kind(name));
        let kind = found.or_else(|| Some(inherited()?.1.as_str())).unwrap_or_else(|| sets.kind_of_name(name));
        let shape = sets.kinds.get(kind);
        let all = self.tree(group);
        let tree_of = |name: &str| all.and_then(|all| table(all.get(name)?));
        let mut tree = Tree::new();
        for (key, value) in sets.defaults.and_then(tree_of).into_iter().flatten() {
            if sets.shapes(shape).iter().any(|shape| shape.has(key)) {
                tree.insert(key.clone(), value.clone());
            }
        }
        tree.extend(sets.preset(name).map(|(key, value)| (key.to_owned(), Value::new(None, value.clone()))));
        tree.extend(tree_of(name).into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        tree.entry("kind".to_owned()).or_insert_with(|| Value::new(None, kind));
        Set { key, kind: kind.to_owned(), is_known: shape.is_some(), tree }
    }

    /// Returns the names of the declared sets of a group that have this kind.
    pub fn of_kind<'a>(&'a self, group: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
        let matches = move |((of, _), its): &(&(&str, String), &String)| *of == group && **its == kind;
        self.kinds.iter().filter(matches).map(|((_, name), _)| name.as_str())
    }

    /// Returns the origin of the value of `key`, such as `ipc.exchange`. An inherited value has the
    /// origin that it has in the set of defaults.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        let path: Vec<&str> = key.splitn(3, '.').collect();
        let set;
        let value = match path[..] {
            [group, name, key] => {
                set = self.set(group, name);
                set.tree.get(key)
            }
            [group, key] => self.tree(group).and_then(|section| section.get(key)),
            _ => None,
        };
        value.map_or(Origin::Default, origin_of)
    }

    /// Returns the settings files that were read; later ones override earlier ones.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// Returns the warnings. This crate prints nothing; the program reports them.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns the variables that are set and that another part of the program uses.
    #[must_use]
    pub fn recognised(&self) -> &[RecognisedVariable] {
        &self.recognised
    }

    /// Returns every key with its value and origin, section by section.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (group, _, form) in &self.schema.groups {
            match form {
                Group::Section(shape) => {
                    push(&mut rows, group, &[*shape], self.tree(group).unwrap_or(&Tree::new()));
                }
                Group::Values(_) => {
                    let values: BTreeMap<_, _> = self.tree(group).into_iter().flatten().collect();
                    rows.extend(
                        values.into_iter().map(|(name, value)| row(format!("{group}.{name}"), value)),
                    );
                }
                Group::Sets(sets) => {
                    let defaults = sets.defaults.into_iter().filter(|name| !self.declares(group, name));
                    for name in defaults.chain(self.names(group)) {
                        let set = self.set(group, name);
                        match sets.kinds.get(&set.kind) {
                            Some(_) if sets.defaults == Some(name) => {
                                push(
                                    &mut rows,
                                    &set.key,
                                    &sets.shapes(sets.kinds.values()),
                                    &set.declared_keys(self),
                                );
                            }
                            Some(shape) => push(&mut rows, &set.key, &sets.shapes([shape]), &set.tree),
                            None => {
                                let keys: BTreeMap<_, _> = set.tree.iter().collect();
                                let keys = keys.into_iter().map(|(key, value)| Row {
                                    unread: true,
                                    ..row(format!("{}.{key}", set.key), value)
                                });
                                rows.extend(keys);
                            }
                        }
                    }
                }
            }
        }
        rows
    }

    fn tree(&self, name: &str) -> Option<&Tree> {
        table(self.merged.get(name)?)
    }
}

impl Set {
    /// Returns the name of the set.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.split_once('.').map_or("", |(_, name)| name)
    }

    /// Returns the kind of the set.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns whether the schema has the kind of the set.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns the keys of `T`, with the defaults of `T` for those that the set lacks.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the set inherits a value that is invalid for its kind.
    pub fn read<T: Settings>(&self) -> Result<T, Error> {
        let shape = Shape::of::<T>();
        let keys = self.tree.iter().filter(|(key, _)| shape.has(key));
        read(&self.key, &keys.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// Returns the error for a key of this set whose value refers to an undefined name.
    #[must_use]
    pub fn unknown_reference(&self, key: &str, value: &str, valid: Vec<String>) -> Error {
        Error::UnknownReference {
            origin: self.tree.get(key).map_or(Origin::Default, origin_of),
            value: crate::escape::quoted(value),
            key: format!("{}.{key}", self.key),
            valid,
        }
    }

    /// Returns the declared keys of the set of defaults, for all kinds.
    fn declared_keys(&self, loaded: &Loaded) -> Tree {
        let (group, name) = self.key.split_once('.').unwrap_or_default();
        let declared = loaded.tree(group).and_then(|group| table(group.get(name)?));
        declared.cloned().unwrap_or_default()
    }
}

fn read<T: Settings>(section: &str, tree: &Tree) -> Result<T, Error> {
    let shape = Shape::of::<T>();
    for (key, value) in tree {
        let checked = shape.check_key(key, value, Trust::Full);
        checked.map_err(|fault| fault_error(fault, &format!("{section}.{key}"), value))?;
    }
    let value = Value::new(None, ValueKind::Table(tree.clone()));
    T::deserialize(Strict { value: &value, trust: Trust::Full })
        .map_err(|fault| fault_error(fault, section, &value))
}

/// Returns the origin of a value; for a table, that of its last value.
fn origin_of(value: &Value) -> Origin {
    match &value.kind {
        ValueKind::Table(inner) => {
            let inner: BTreeMap<_, _> = inner.iter().collect();
            inner.into_values().map(origin_of).next_back().unwrap_or_else(|| Origin::of(value))
        }
        _ => Origin::of(value),
    }
}

fn row(key: String, value: &Value) -> Row {
    let variable = variable_name(&key);
    Row { origin: origin_of(value), value: text(value), variable, key, unread: false }
}

fn push(rows: &mut Vec<Row>, section: &str, shapes: &[Shape], tree: &Tree) {
    let mut seen = std::collections::BTreeSet::new();
    for shape in shapes {
        let defaults = shape.defaults();
        for key in shape.keys.iter().filter(|key| seen.insert(key.name)) {
            let full = format!("{section}.{}", key.name);
            let empty = Value::new(None, ValueKind::Table(Tree::new()));
            rows.push(row(full, tree.get(key.name).or_else(|| defaults.get(key.name)).unwrap_or(&empty)));
        }
    }
}

/// Returns a value in the form of a variable: a text as it is, anything else as TOML.
fn text(value: &Value) -> String {
    match &value.kind {
        ValueKind::Nil => String::new(),
        ValueKind::String(text) => text.clone(),
        _ => inline(value),
    }
}

/// Returns a value as TOML on one line.
pub(crate) fn inline(value: &Value) -> String {
    match &value.kind {
        ValueKind::Nil => quoted(""),
        ValueKind::String(text) => quoted(text),
        ValueKind::Float(number) => format!("{number:?}"),
        ValueKind::Array(list) => {
            let elements: Vec<_> = list.iter().map(inline).collect();
            format!("[{}]", elements.join(", "))
        }
        ValueKind::Table(table) if table.is_empty() => "{}".to_owned(),
        ValueKind::Table(table) => {
            let sorted: BTreeMap<_, _> = table.iter().collect();
            let entries =
                sorted.into_iter().map(|(key, value)| format!("{} = {}", bare_or_quoted(key), inline(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn bare_or_quoted(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { quoted(key) }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
