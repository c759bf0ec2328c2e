//! The check of one source: every key and value, before sources are merged.

use std::collections::BTreeMap;

use config::{Value, ValueKind};

use crate::schema::{Group, Schema, Shape, Tree, closest, is_name};
use crate::strict::{Fault, Trust};
use crate::{Error, Origin, shown};

/// What one source says.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) tree: Tree,
    pub(crate) trust: Trust,
}

/// The kinds of the sets of a group, by name.
pub(crate) type Kinds = BTreeMap<(&'static str, String), String>;

/// The kind of each set that some source declares: what the strongest source says, else what the set of
/// defaults says, else what follows from the name.
pub(crate) fn kinds(schema: &Schema, layers: &[Layer]) -> Kinds {
    let mut kinds = Kinds::new();
    for (group, _, kind_of) in &schema.groups {
        let Group::Sets(sets) = kind_of else { continue };
        let mut said = BTreeMap::<&str, Option<&str>>::new();
        for (name, set) in layers.iter().filter_map(|layer| table(layer.tree.get(*group)?)).flatten() {
            let kind = table(set).and_then(|set| match &set.get("kind")?.kind {
                ValueKind::String(kind) => Some(kind.as_str()),
                _ => None,
            });
            let slot = said.entry(name).or_default();
            *slot = kind.or(*slot);
        }
        let inherited = sets.defaults.and_then(|name| said.get(name).copied().flatten());
        for (name, kind) in said {
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

/// Checks every key and value of a source, and gives keys their present names.
pub(crate) fn layer(schema: &Schema, kinds: &Kinds, layer: Layer) -> Result<Tree, Error> {
    let check = Check { schema, trust: layer.trust };
    let mut checked = Tree::new();
    for (name, value) in sorted(layer.tree) {
        if schema.unread.contains(&name.as_str()) {
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
                let others: Vec<_> = sets.kinds.iter().collect();
                if sets.defaults == Some(set) {
                    return check.section(key, value, &sets.shapes(sets.kinds.values()), &others);
                }
                let kind = kinds.get(&(*group, set.to_owned())).map_or(sets.default_kind, String::as_str);
                match sets.kinds.get(kind) {
                    Some(shape) => check.section(key, value, &sets.shapes([shape]), &others),
                    // Kept unread: the file may be for several programs, which register other kinds.
                    None => check.table(key, value).map(|_| value.clone()),
                }
            })?,
        };
        checked.insert(name, value);
    }
    Ok(checked)
}

/// In the order of the names, so that of several faults the same one is told each time.
fn sorted(tree: Tree) -> BTreeMap<String, Value> {
    tree.into_iter().collect()
}

/// The error of a value that its key cannot have.
pub(crate) fn fault_error(fault: Fault, key: &str, value: &Value) -> Error {
    let (key, origin) = (key.to_owned(), Origin::of(value));
    match fault {
        Fault::Refused => Error::Refused { key, origin },
        Fault::Invalid(expected) => Error::BadValue { key, value: shown::value(value), origin, expected },
        Fault::Unknown { valid } => {
            let expected = format!("a table of {}", valid.join(", "));
            Error::BadValue { key, value: shown::value(value), origin, expected }
        }
    }
}

struct Check<'a> {
    schema: &'a Schema,
    trust: Trust,
}

impl Check<'_> {
    /// A table whose keys are those of `shapes`; a key that several have is right if one takes it.
    fn section(
        &self,
        section: &str,
        value: &Value,
        shapes: &[Shape],
        others: &[(&String, &Shape)],
    ) -> Result<Value, Error> {
        let mut checked = Tree::new();
        for (name, value) in sorted(self.table(section, value)?.clone()) {
            let is_present = shapes.iter().any(|shape| shape.has(&name));
            let older = || shapes.iter().find_map(|shape| shape.present_name(&name));
            let present = if is_present { None } else { older() };
            let present = present.unwrap_or(&name).to_owned();
            let key = format!("{section}.{name}");
            let mut removed = shapes.iter().flat_map(|shape| shape.removed);
            if let Some((_, instead)) = removed.find(|(removed, _)| *removed == name) {
                let reason = format!("there is no such key any more; {instead}");
                return Err(Error::Conflict { key, origin: Origin::of(&value), reason });
            }
            let (mut valid, mut fault, mut is_right) = (Vec::new(), None, false);
            for shape in shapes {
                match shape.check_key(&present, &value, self.trust) {
                    Ok(()) => is_right = true,
                    Err(Fault::Unknown { valid: names }) if !shape.has(&present) => valid.extend(names),
                    Err(other) => fault = fault.or(Some(other)),
                }
            }
            match fault {
                _ if is_right => {}
                Some(fault) => return Err(fault_error(fault, &key, &value)),
                None => return Err(self.unknown(section, &name, &value, valid, others)),
            }
            let origin = Origin::of(&value);
            if let Some(other) = checked.insert(present.clone(), value) {
                let other = Origin::of(&other);
                let reason =
                    format!("is set twice, by {present} and by an older name of it ({other}); remove one");
                return Err(Error::Conflict { key, origin, reason });
            }
        }
        Ok(Value::new(Origin::of(value).uri().as_ref(), ValueKind::Table(checked)))
    }

    /// A table whose keys are names.
    fn names(
        &self,
        section: &str,
        value: &Value,
        entry: impl Fn(&str, &Value) -> Result<Value, Error>,
    ) -> Result<Value, Error> {
        let mut checked = Tree::new();
        for (name, value) in sorted(self.table(section, value)?.clone()) {
            if !is_name(&name) {
                let (section, name) = (section.to_owned(), shown::quoted(&name));
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
            value: shown::value(value),
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
        others: &[(&String, &Shape)],
    ) -> Error {
        let dot = if section.is_empty() { "" } else { "." };
        let kinds = others.iter().filter(|(_, shape)| shape.has(name)).map(|(kind, _)| (*kind).clone());
        let kinds: Box<[String]> = kinds.collect();
        // The key of this name elsewhere, for one that stands in the wrong section or in none.
        let elsewhere = || {
            let found = self.schema.groups.iter().find(|(.., group)| group.knows(name));
            found.map(|(group, _, form)| match form {
                Group::Sets(_) => format!("{group}.<name>.{name}"),
                _ => format!("{group}.{name}"),
            })
        };
        Error::UnknownKey {
            key: format!("{section}{dot}{}", shown::plain(name)),
            origin: Origin::of(value),
            closest: if kinds.is_empty() {
                closest(name, valid.iter().copied()).or_else(elsewhere)
            } else {
                None
            },
            kinds,
            valid: valid.into_iter().map(str::to_owned).collect(),
        }
    }
}
