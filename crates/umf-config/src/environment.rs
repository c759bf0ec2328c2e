//! Environment variables: `UMF_<SECTION>_<KEY>`, `UMF_SET`, and legacy variables.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use config::{Value, ValueKind};

use crate::check::{Kinds, Layer};
use crate::schema::{Group, Schema, Sets, Shape, Tree, closest, is_name, variable_name};
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
    let mut layers = Vec::new();
    for legacy in &schema.legacy {
        let Some(value) = context.variable(legacy.name) else { continue };
        let parsed = value.to_str().and_then(legacy.read);
        let keys = parsed
            .filter(|keys| keys.iter().all(|(key, text)| accepts(schema, key, text)))
            .unwrap_or_else(|| {
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
            continue;
        }
        let mut tree = Tree::new();
        let origin = Origin::Environment(legacy.name.to_owned());
        for (key, text) in keys {
            let path: Vec<_> = key.split('.').map(str::to_owned).collect();
            let name = path.last().map_or("", String::as_str);
            let value = value_of(&text, &origin, name, &shapes_of(schema, &key));
            put(&mut tree, &path, value);
        }
        layers.push(Layer { tree, trust: Trust::Environment });
    }
    let mut tree = Tree::new();
    for (name, value) in context.variables().filter(|(name, _)| name.as_bytes().starts_with(b"UMF_")) {
        let is_no_key = |name: &str| {
            LOADER_VARIABLES.contains(&name)
                || schema.legacy.iter().any(|legacy| legacy.name == name)
                || schema.recognised.iter().any(|(known, _)| *known == name)
                || schema
                    .ignored
                    .iter()
                    .any(|section| name.starts_with(&format!("{}_", variable_name(section))))
        };
        let target = match name.to_str() {
            Some(name) if is_no_key(name) => continue,
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
        let origin = Origin::Environment(variable.clone());
        let name = target.path.last().map_or("", String::as_str);
        let value = value_of(text, &origin, name, &target.shapes);
        put(&mut tree, &target.path, value);
    }
    layers.push(Layer { tree, trust: Trust::Environment });
    Ok(layers)
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
                if let Some(target) = set_target(variable, rest, group, form, sets, kinds)? {
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

/// Splits the rest of a variable's name into the name of a set and a key. Declared names are tried
/// first, then the shortest name that is followed by a known key.
fn set_target(
    variable: &str,
    rest: &str,
    group: &'static str,
    form: &Group,
    sets: &Sets,
    kinds: &Kinds,
) -> Result<Option<Target>, Error> {
    let declared = kinds.keys().filter(|(of, _)| *of == group).map(|(_, name)| name.as_str());
    let mut names: Vec<&str> = declared.chain(sets.built_in()).collect();
    names.sort_unstable();
    names.dedup();
    let key_after = |name: &str| {
        let key = rest.strip_prefix(&upper(name))?.strip_prefix('_')?.to_lowercase();
        form.has_key(&key).then(|| (name.to_owned(), key))
    };
    let mut fits: Vec<_> = names.into_iter().filter_map(key_after).collect();
    if fits.is_empty() {
        let splits =
            rest.match_indices('_').map(|(at, _)| (rest[..at].to_lowercase(), rest[at + 1..].to_lowercase()));
        fits.extend(splits.into_iter().find(|(name, key)| is_name(name) && form.has_key(key)));
    }
    match &fits[..] {
        [] => Ok(None),
        [(name, key)] => {
            let kind =
                kinds.get(&(group, name.clone())).map_or_else(|| sets.kind_of_name(name), String::as_str);
            let kind_shape =
                sets.kinds.get(kind).filter(|shape| shape.has(key) || shape.current_name(key).is_some());
            let shapes =
                kind_shape.map_or_else(|| sets.shapes(sets.kinds.values()), |shape| sets.shapes([shape]));
            Ok(Some(Target { path: vec![group.to_owned(), name.clone(), key.clone()], shapes }))
        }
        _ => Err(ambiguous(variable, fits.iter().map(|(name, key)| format!("{group}.{name}.{key}")))),
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
