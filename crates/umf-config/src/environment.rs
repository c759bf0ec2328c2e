//! Environment variables: `UMF_<SECTION>_<KEY>`, `UMF_SET`, and legacy variables.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use config::{Value, ValueKind};

use crate::check::{Kinds, Layer};
use crate::schema::{Group, LegacyVariable, Schema, Sets, Shape, Tree, closest, is_name, variable_name};
use crate::strict::Trust;
use crate::{Context, Error, Origin, Warning, escape, file};

/// A variable that is set, and used by another part of the program than the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RecognisedVariable {
    /// The variable.
    pub variable: &'static str,
    /// The value; invalid UTF-8 is replaced.
    pub value: String,
    /// The effect, for people.
    pub note: &'static str,
}

/// Variables that control loading itself.
const LOADER_VARIABLES: [&str; 2] = ["UMF_TOML", "UMF_SET"];

/// Returns the variables that are set and that another part of the program uses.
pub(crate) fn recognised(context: &Context, schema: &Schema) -> Vec<RecognisedVariable> {
    let set = schema.recognised.iter().filter_map(|(variable, note)| {
        let value = context.variable(variable)?.to_string_lossy().into_owned();
        Some(RecognisedVariable { variable, value, note })
    });
    set.collect()
}

/// Parses `UMF_SET`: TOML, for names that no variable can express.
pub(crate) fn umf_set(context: &Context) -> Result<Option<Layer>, Error> {
    let Some(text) = context.variable("UMF_SET") else { return Ok(None) };
    let variable = "UMF_SET".to_owned();
    let text = text.to_str().ok_or_else(|| Error::NotUnicode { variable: variable.clone(), key: None })?;
    let origin = Origin::Environment(variable.clone());
    let tree = file::parse(text, |_| origin.clone())
        .map_err(|(_, reason)| Error::VariableSyntax { variable, reason })?;
    Ok(Some(Layer { tree, trust: Trust::Environment }))
}

/// Returns a layer per legacy variable, in order of precedence, and one layer of all other
/// variables.
pub(crate) fn layers(
    context: &Context,
    schema: &Schema,
    kinds: &Kinds,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Layer>, Error> {
    let legacy = schema.legacy.iter().filter_map(|legacy| legacy_layer(context, schema, legacy, warnings));
    let mut layers: Vec<Layer> = legacy.collect();
    layers.push(key_layer(context, schema, kinds, warnings)?);
    Ok(layers)
}

/// Returns the keys that a legacy variable sets. `None` if it is unset, or if current variables set
/// all of its keys.
fn legacy_layer(
    context: &Context,
    schema: &Schema,
    legacy: &LegacyVariable,
    warnings: &mut Vec<Warning>,
) -> Option<Layer> {
    let value = context.variable(legacy.name)?;
    let parsed = value.to_str().and_then(legacy.read);
    let valid = parsed.filter(|keys| keys.iter().all(|(key, text)| accepts(schema, key, text)));
    let keys = valid.unwrap_or_else(|| {
        warnings.push(Warning::BadLegacyVariable {
            variable: legacy.name,
            value: escape::quoted(&value.to_string_lossy()),
            effect: legacy.effect,
            expected: legacy.expected,
        });
        legacy.fallback.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
    });
    let successors = keys.iter().map(|(key, _)| variable_name(key));
    let successors: Vec<_> = successors.filter(|name| context.variable(name).is_some()).collect();
    if let [by, ..] = &successors[..]
        && successors.len() == keys.len()
    {
        warnings.push(Warning::Shadowed { variable: legacy.name.to_owned(), by: by.clone() });
        return None;
    }
    let mut tree = Tree::new();
    let origin = Origin::Environment(legacy.name.to_owned());
    for (key, text) in keys {
        let path: Vec<_> = key.split('.').map(str::to_owned).collect();
        let name = path.last().map_or("", String::as_str);
        let value = value_of(&text, &origin, name, &shapes_of(schema, &key));
        put(&mut tree, &path, value);
    }
    Some(Layer { tree, trust: Trust::Environment })
}

/// Returns the keys that variables named `UMF_<SECTION>_<KEY>` set. Unknown variables are warnings.
fn key_layer(
    context: &Context,
    schema: &Schema,
    kinds: &Kinds,
    warnings: &mut Vec<Warning>,
) -> Result<Layer, Error> {
    let mut tree = Tree::new();
    for (name, value) in context.variables().filter(|(name, _)| name.as_bytes().starts_with(b"UMF_")) {
        let target = match name.to_str() {
            Some(name) if has_other_use(schema, name) => continue,
            Some(name) => target(name, schema, kinds)?,
            None => None,
        };
        let Some(target) = target else {
            warnings.push(unknown(&name.to_string_lossy(), schema));
            continue;
        };
        let (variable, key) = (name.to_string_lossy().into_owned(), target.path.join("."));
        let Some(text) = value.to_str() else {
            return Err(Error::NotUnicode { variable, key: Some(key) });
        };
        let origin = Origin::Environment(variable);
        let name = target.path.last().map_or("", String::as_str);
        let value = value_of(text, &origin, name, &target.shapes);
        put(&mut tree, &target.path, value);
    }
    Ok(Layer { tree, trust: Trust::Environment })
}

/// Returns whether a variable has a use other than setting one key: it controls loading, is a
/// legacy variable, or belongs to another part of the program or to an ignored section.
fn has_other_use(schema: &Schema, name: &str) -> bool {
    let is_ignored = |section: &&str| name.starts_with(&format!("{}_", variable_name(section)));
    LOADER_VARIABLES.contains(&name)
        || schema.legacy.iter().any(|legacy| legacy.name == name)
        || schema.recognised.iter().any(|(known, _)| *known == name)
        || schema.ignored.iter().any(is_ignored)
}

fn shapes_of(schema: &Schema, key: &str) -> Vec<Shape> {
    key.split('.').next().and_then(|group| schema.group(group)).map_or_else(Vec::new, Group::shapes)
}

/// Returns whether `text` is a valid value of `key`.
fn accepts(schema: &Schema, key: &str, text: &str) -> bool {
    let (shapes, name) = (shapes_of(schema, key), key.rsplit('.').next().unwrap_or_default());
    let value = value_of(text, &Origin::Default, name, &shapes);
    shapes.iter().any(|shape| shape.check_key(name, &value, Trust::Full).is_ok())
}

/// Inserts a value at a path, creating tables as needed.
fn put(tree: &mut Tree, path: &[String], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        tree.insert(first.clone(), value);
        return;
    }
    let uri = Origin::of(&value).uri();
    let entry =
        tree.entry(first.clone()).or_insert_with(|| Value::new(uri.as_ref(), ValueKind::Table(Tree::new())));
    if let ValueKind::Table(table) = &mut entry.kind {
        put(table, rest, value);
    }
}

/// Converts the text of a variable. Returns the first form that the key accepts: the text, the text
/// as TOML, a list of its comma-separated parts, or a boolean for yes and no. If it accepts none,
/// returns a number if the text is one, else the text.
fn value_of(text: &str, origin: &Origin, key: &str, shapes: &[Shape]) -> Value {
    let uri = origin.uri();
    let new = |kind: ValueKind| Value::new(uri.as_ref(), kind);
    let as_text = new(text.to_owned().into());
    // More than one key: the text contains a line break followed by another key.
    let toml =
        file::parse(&format!("value = {text}"), |_| origin.clone()).ok().filter(|tree| tree.len() == 1);
    let toml = toml.and_then(|mut tree| tree.remove("value"));
    let parts = text.split(',').map(|part| new(part.trim().to_owned().into())).collect::<Vec<_>>();
    let boolean = match text.trim().to_ascii_lowercase().as_str() {
        "yes" | "on" | "1" | "true" => Some(new(true.into())),
        "no" | "off" | "0" | "false" => Some(new(false.into())),
        _ => None,
    };
    let trimmed = new(text.trim().to_owned().into());
    let candidates =
        [Some(as_text.clone()), Some(trimmed), toml.clone(), Some(new(ValueKind::Array(parts))), boolean];
    let is_valid = |value: &Value| {
        let mut with_key = shapes.iter().map(|shape| (shape, shape.current_name(key).unwrap_or(key)));
        with_key.any(|(shape, name)| {
            shape.keys.is_empty() && name.is_empty() || shape.check_key(name, value, Trust::Full).is_ok()
        })
    };
    let is_number = |value: &Value| matches!(value.kind, ValueKind::I64(_));
    candidates.into_iter().flatten().find(is_valid).or_else(|| toml.filter(is_number)).unwrap_or(as_text)
}

/// The key that a variable sets.
struct Target {
    path: Vec<String>,
    shapes: Vec<Shape>,
}

/// Returns the key that `variable` sets, or `None` if there is no such key.
fn target(variable: &str, schema: &Schema, kinds: &Kinds) -> Result<Option<Target>, Error> {
    if variable.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Ok(None);
    }
    for (group, _, form) in &schema.groups {
        let Some(rest) = variable.strip_prefix(&format!("{}_", variable_name(group))) else { continue };
        let lower = rest.to_lowercase();
        match form {
            Group::Section(shape) if form.has_key(&lower) => {
                return Ok(Some(Target { path: vec![(*group).to_owned(), lower], shapes: vec![*shape] }));
            }
            Group::Section(_) => {}
            Group::Values(shape) => {
                let declared = kinds.keys().filter(|(of, _)| of == group).map(|(_, name)| name.as_str());
                let fits: Vec<_> = declared.filter(|name| upper(name) == rest).collect();
                let name = match fits[..] {
                    [] if is_name(&lower) => lower,
                    [name] => name.to_owned(),
                    [] => continue,
                    _ => return Err(ambiguous(variable, fits.iter().map(|name| format!("{group}.{name}")))),
                };
                return Ok(Some(Target { path: vec![(*group).to_owned(), name], shapes: vec![*shape] }));
            }
            Group::Sets(sets) => {
                let set_variable = SetVariable { variable, rest, group, form, sets, kinds };
                if let Some(target) = set_variable.target()? {
                    return Ok(Some(target));
                }
            }
        }
    }
    Ok(None)
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn ambiguous(variable: &str, candidates: impl Iterator<Item = String>) -> Error {
    Error::AmbiguousVariable { variable: variable.to_owned(), candidates: candidates.collect() }
}

/// A variable `UMF_<GROUP>_<SET>_<KEY>`. Names of sets and keys contain underscores too, so it may
/// split in several ways.
struct SetVariable<'a> {
    variable: &'a str,
    /// The part after the group.
    rest: &'a str,
    group: &'static str,
    form: &'a Group,
    sets: &'a Sets,
    kinds: &'a Kinds,
}

impl SetVariable<'_> {
    /// Returns the key that the variable sets, or `None` if there is no such key.
    fn target(&self) -> Result<Option<Target>, Error> {
        let mut splits = self.known_splits();
        if splits.is_empty() {
            splits.extend(self.shortest_split());
        }
        match &splits[..] {
            [] => Ok(None),
            [(name, key)] => {
                let path = vec![self.group.to_owned(), name.clone(), key.clone()];
                Ok(Some(Target { path, shapes: self.shapes(name, key) }))
            }
            _ => {
                let keys = splits.iter().map(|(name, key)| format!("{}.{name}.{key}", self.group));
                Err(ambiguous(self.variable, keys))
            }
        }
    }

    /// Returns the splits into a declared or built-in set and a known key.
    fn known_splits(&self) -> Vec<(String, String)> {
        let declared = self.kinds.keys().filter(|(of, _)| *of == self.group).map(|(_, name)| name.as_str());
        let mut names: Vec<&str> = declared.chain(self.sets.built_in()).collect();
        names.sort_unstable();
        names.dedup();
        let split = |name: &str| {
            let key = self.rest.strip_prefix(&upper(name))?.strip_prefix('_')?.to_lowercase();
            self.form.has_key(&key).then(|| (name.to_owned(), key))
        };
        names.into_iter().filter_map(split).collect()
    }

    /// Returns the split into the shortest valid name and a known key.
    fn shortest_split(&self) -> Option<(String, String)> {
        let mut splits = self
            .rest
            .match_indices('_')
            .map(|(at, _)| (self.rest[..at].to_lowercase(), self.rest[at + 1..].to_lowercase()));
        splits.find(|(name, key)| is_name(name) && self.form.has_key(key))
    }

    /// Returns the shapes that may have the key: that of the set's kind, or those of all kinds if
    /// this kind does not have it.
    fn shapes(&self, name: &str, key: &str) -> Vec<Shape> {
        let declared = self.kinds.get(&(self.group, name.to_owned())).map(String::as_str);
        let kind = declared.unwrap_or_else(|| self.sets.kind_of_name(name));
        let shape = self.sets.kinds.get(kind);
        match shape.filter(|shape| shape.has(key) || shape.current_name(key).is_some()) {
            Some(shape) => self.sets.shapes([shape]),
            None => self.sets.shapes(self.sets.kinds.values()),
        }
    }
}

/// Returns the warning about an unknown variable.
fn unknown(variable: &str, schema: &Schema) -> Warning {
    let mut known: Vec<String> = LOADER_VARIABLES.iter().map(|name| (*name).to_owned()).collect();
    known.extend(schema.legacy.iter().map(|legacy| legacy.name.to_owned()));
    known.extend(schema.recognised.iter().map(|(name, _)| (*name).to_owned()));
    for (group, _, form) in &schema.groups {
        let set = match form {
            Group::Sets(sets) => format!(".{}", sets.defaults.unwrap_or(sets.default_kind)),
            _ => String::new(),
        };
        let keys = form.shapes().into_iter().flat_map(|shape| shape.keys);
        known.extend(keys.map(|key| variable_name(&format!("{group}{set}.{}", key.name))));
    }
    let closest = closest(variable, known.iter().map(String::as_str));
    Warning::UnknownVariable { closest, variable: escape::plain(variable) }
}

/// Returns the settings file that `UMF_TOML` names.
pub(crate) fn named_file(context: &Context) -> Option<&Path> {
    let named: &OsStr = context.variable("UMF_TOML")?;
    Some(Path::new(named))
}
