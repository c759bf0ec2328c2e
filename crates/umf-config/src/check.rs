//! Validation of one source: every key and value, before sources are merged.

use std::collections::BTreeMap;

use config::{Value, ValueKind};

use crate::schema::{Group, Schema, Shape, Tree, closest, is_name};
use crate::strict::{Fault, Trust};
use crate::{Error, Origin, escape};

/// The keys and values of one source.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) tree: Tree,
    pub(crate) trust: Trust,
}

/// The kind of each set, by group and name.
pub(crate) type Kinds = BTreeMap<(&'static str, String), String>;

/// Returns the kind of each declared set: from the source with the highest precedence that sets it,
/// else from the preset, else from the set of defaults, else from the name.
pub(crate) fn kinds(schema: &Schema, layers: &[Layer]) -> Kinds {
    let mut kinds = Kinds::new();
    for (group, _, kind_of) in &schema.groups {
        let Group::Sets(sets) = kind_of else { continue };
        let mut declared = BTreeMap::<&str, Option<&str>>::new();
        for (name, set) in layers.iter().filter_map(|layer| table(layer.tree.get(*group)?)).flatten() {
            let kind = table(set).and_then(|set| match &set.get("kind")?.kind {
                ValueKind::String(kind) => Some(kind.as_str()),
                _ => None,
            });
            let entry = declared.entry(name).or_default();
            *entry = kind.or(*entry);
        }
        let inherited = sets.defaults.and_then(|name| declared.get(name).copied().flatten());
        for (name, kind) in declared {
            let kind = kind
                .or_else(|| sets.preset_kind(name))
                .or(inherited)
                .unwrap_or_else(|| sets.kind_of_name(name));
            kinds.insert((group, name.to_owned()), kind.to_owned());
        }
    }
    kinds
}

pub(crate) fn table(value: &Value) -> Option<&Tree> {
    match &value.kind {
        ValueKind::Table(table) => Some(table),
        _ => None,
    }
}

/// Checks every key and value of a source, and replaces older names of keys by the current ones.
pub(crate) fn layer(schema: &Schema, kinds: &Kinds, layer: Layer) -> Result<Tree, Error> {
    let check = Check { schema, trust: layer.trust };
    let mut checked = Tree::new();
    for (name, value) in sorted(layer.tree) {
        if schema.ignored.contains(&name.as_str()) {
            continue;
        }
        let Some((group, _, form)) = schema.groups.iter().find(|(group, ..)| *group == name) else {
            let valid = schema.groups.iter().map(|(group, ..)| *group).collect();
            return Err(check.unknown("", &name, &value, valid, &[]));
        };
        let value = match form {
            Group::Section(shape) => check.section(&name, &value, &[*shape], &[])?,
            Group::Values(shape) => check.names(&name, &value, |key, value| {
                shape.check_value(value, check.trust).map_err(|fault| fault_error(fault, key, value))?;
                Ok(value.clone())
            })?,
            Group::Sets(sets) => check.names(&name, &value, |key, value| {
                let set = &key[name.len() + 1..];
                let all_kinds: Vec<_> = sets.kinds.iter().collect();
                if sets.defaults == Some(set) {
                    return check.section(key, value, &sets.shapes(sets.kinds.values()), &all_kinds);
                }
                let kind = kinds.get(&(*group, set.to_owned())).map_or(sets.default_kind, String::as_str);
                match sets.kinds.get(kind) {
                    Some(shape) => check.section(key, value, &sets.shapes([shape]), &all_kinds),
                    // Kept unchecked: other programs that read the file may register the kind.
                    None => check.table(key, value).map(|_| value.clone()),
                }
            })?,
        };
        checked.insert(name, value);
    }
    Ok(checked)
}

/// Sorts a table by key, so that of several errors always the same one is reported.
fn sorted(tree: Tree) -> BTreeMap<String, Value> {
    tree.into_iter().collect()
}

/// Returns the error for a value that is invalid for its key.
pub(crate) fn fault_error(fault: Fault, key: &str, value: &Value) -> Error {
    let (key, origin) = (key.to_owned(), Origin::of(value));
    match fault {
        Fault::Refused => Error::Refused { key, origin },
        Fault::Invalid(expected) => Error::BadValue { key, value: escape::value(value), origin, expected },
        Fault::Unknown { valid } => {
            let expected = format!("a table of {}", valid.join(", "));
            Error::BadValue { key, value: escape::value(value), origin, expected }
        }
    }
}

/// The validation of one source.
struct Check<'a> {
    schema: &'a Schema,
    trust: Trust,
}

impl Check<'_> {
    /// Checks a table with the keys of `shapes`. A value of a key of several shapes is valid if one
    /// shape accepts it.
    fn section(
        &self,
        section: &str,
        value: &Value,
        shapes: &[Shape],
        all_kinds: &[(&String, &Shape)],
    ) -> Result<Value, Error> {
        let mut checked = Tree::new();
        for (name, value) in sorted(self.table(section, value)?.clone()) {
            let is_current = shapes.iter().any(|shape| shape.has(&name));
            let renamed = || shapes.iter().find_map(|shape| shape.current_name(&name));
            let current = if is_current { None } else { renamed() };
            let current = current.unwrap_or(&name).to_owned();
            let key = format!("{section}.{name}");
            let mut removed = shapes.iter().flat_map(|shape| shape.removed);
            if let Some((_, instead)) = removed.find(|(removed, _)| *removed == name) {
                let reason = format!("this key was removed; {instead}");
                return Err(Error::Conflict { key, origin: Origin::of(&value), reason });
            }
            let (mut valid, mut fault, mut is_valid) = (Vec::new(), None, false);
            for shape in shapes {
                match shape.check_key(&current, &value, self.trust) {
                    Ok(()) => is_valid = true,
                    Err(Fault::Unknown { valid: names }) if !shape.has(&current) => valid.extend(names),
                    Err(other) => fault = fault.or(Some(other)),
                }
            }
            match fault {
                _ if is_valid => {}
                Some(fault) => return Err(fault_error(fault, &key, &value)),
                None => return Err(self.unknown(section, &name, &value, valid, all_kinds)),
            }
            let origin = Origin::of(&value);
            if let Some(other) = checked.insert(current.clone(), value) {
                let other = Origin::of(&other);
                let reason =
                    format!("is set twice, by {current} and by an older name of it ({other}); remove one");
                return Err(Error::Conflict { key, origin, reason });
            }
        }
        Ok(Value::new(Origin::of(value).uri().as_ref(), ValueKind::Table(checked)))
    }

    /// Checks a table whose keys are names that the user chooses.
    fn names(
        &self,
        section: &str,
        value: &Value,
        entry: impl Fn(&str, &Value) -> Result<Value, Error>,
    ) -> Result<Value, Error> {
        let mut checked = Tree::new();
        for (name, value) in sorted(self.table(section, value)?.clone()) {
            if !is_name(&name) {
                let (section, name) = (section.to_owned(), escape::quoted(&name));
                return Err(Error::BadName { section, name, origin: Origin::of(&value) });
            }
            let value = entry(&format!("{section}.{name}"), &value)?;
            checked.insert(name, value);
        }
        Ok(Value::new(Origin::of(value).uri().as_ref(), ValueKind::Table(checked)))
    }

    fn table<'v>(&self, key: &str, value: &'v Value) -> Result<&'v Tree, Error> {
        table(value).ok_or_else(|| Error::BadValue {
            key: key.to_owned(),
            value: escape::value(value),
            origin: Origin::of(value),
            expected: format!("a table: keys under a line [{key}]"),
        })
    }

    fn unknown(
        &self,
        section: &str,
        name: &str,
        value: &Value,
        valid: Vec<&str>,
        all_kinds: &[(&String, &Shape)],
    ) -> Error {
        let dot = if section.is_empty() { "" } else { "." };
        let kinds = all_kinds.iter().filter(|(_, shape)| shape.has(name)).map(|(kind, _)| (*kind).clone());
        let kinds: Box<[String]> = kinds.collect();
        // A key of this name in another section, for one that is in the wrong section or in none.
        let in_other_section = || {
            let found = self.schema.groups.iter().find(|(.., group)| group.has_key(name));
            found.map(|(group, _, form)| match form {
                Group::Sets(_) => format!("{group}.<name>.{name}"),
                _ => format!("{group}.{name}"),
            })
        };
        Error::UnknownKey {
            key: format!("{section}{dot}{}", escape::plain(name)),
            origin: Origin::of(value),
            closest: if kinds.is_empty() {
                closest(name, valid.iter().copied()).or_else(in_other_section)
            } else {
                None
            },
            kinds,
            valid: valid.into_iter().map(str::to_owned).collect(),
        }
    }
}
