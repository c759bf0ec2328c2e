//! Which keys there are, and the check of one source against them.

use std::collections::BTreeMap;

use config::{Value, ValueKind};
use serde::Serialize;

use crate::field::{Field, Section, Setting};
use crate::layer::Tree;
use crate::settings::{Ipc, Link, Log, LogOutput, Pool, Provider};
use crate::{ByteSize, Error, Origin, shown};

/// The sections of a settings file.
pub(crate) const SECTIONS: [&str; 6] = ["ipc", "pool", "provider", "shared_limits", "link", "log"];

/// A key that settings know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KnownKey {
    /// Its name in a file; `<name>` stands for the name of a pool, provider set or shared limit.
    pub key: String,
    /// Its older name, where it has one.
    pub alias: Option<&'static str>,
    /// The environment variable that sets it.
    pub variable: String,
    /// What its value may be.
    pub expected: &'static str,
    /// Its default as text; empty where it has none.
    pub default: String,
}

/// Every key, section by section.
pub fn known_keys() -> Vec<KnownKey> {
    let mut keys = section_keys::<Ipc>("ipc");
    keys.extend(section_keys::<Pool>("pool.<name>"));
    keys.extend(section_keys::<Provider>("provider.<name>"));
    keys.push(KnownKey {
        key: "shared_limits.<name>".to_owned(),
        alias: None,
        variable: variable_name("shared_limits.<name>"),
        expected: ByteSize::EXPECTED,
        default: String::new(),
    });
    keys.extend(section_keys::<Link>("link"));
    keys.extend(section_keys::<Log>("log"));
    keys
}

fn section_keys<S: Section>(section: &str) -> Vec<KnownKey> {
    let defaults = S::default();
    let keys = S::FIELDS.iter().map(|field| {
        let key = format!("{section}.{}", field.name);
        KnownKey {
            variable: variable_name(&key),
            alias: field.alias,
            expected: field.expected,
            default: (field.text)(&defaults),
            key,
        }
    });
    keys.collect()
}

/// The environment variable that sets `key`: `ipc.exchange` is `UMF_IPC_EXCHANGE`.
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

/// The key of this name in any section, for one that stands in the wrong section or in none.
fn elsewhere(name: &str) -> Option<String> {
    let same = |key: &KnownKey| key.key.rsplit('.').next() == Some(name);
    known_keys().into_iter().find(same).map(|known| known.key)
}

/// Checks every key and value of a source, and gives the keys their present names.
pub(crate) fn check(tree: Tree, origin: &Origin, trusted: bool) -> Result<Tree, Error> {
    let check = Check { origin, trusted };
    let mut checked = Tree::new();
    for (name, value) in sorted(tree) {
        let value = match name.as_str() {
            "ipc" => check.section::<Ipc>("ipc", value)?,
            "pool" => check.sets("pool", value, |key, value| check.section::<Pool>(key, value))?,
            "provider" => {
                check.sets("provider", value, |key, value| check.section::<Provider>(key, value))?
            }
            "shared_limits" => {
                check.sets("shared_limits", value, |key, value| match ByteSize::read(&value) {
                    Some(_) => Ok(value),
                    None => Err(check.bad_value(key, &value, ByteSize::EXPECTED)),
                })?
            }
            "link" => check.section::<Link>("link", value)?,
            "log" => check.section::<Log>("log", value)?,
            _ => return Err(check.unknown_key("", &name, &SECTIONS)),
        };
        checked.insert(name, value);
    }
    Ok(checked)
}

/// A name that a pool, provider set or shared limit may have.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// In the order of the names, so that of several faults the same one is told each time.
fn sorted(tree: Tree) -> BTreeMap<String, Value> {
    tree.into_iter().collect()
}

struct Check<'a> {
    origin: &'a Origin,
    trusted: bool,
}

impl Check<'_> {
    fn section<S: Section>(&self, section: &str, value: Value) -> Result<Value, Error> {
        let (uri, table) = self.table(section, value, &format!("a table: keys under a line [{section}]"))?;
        let mut checked = Tree::new();
        for (name, value) in sorted(table) {
            let Some(field) = S::field(&name) else {
                let names: Vec<_> = S::FIELDS.iter().map(|field| field.name).collect();
                return Err(self.unknown_key(section, &name, &names));
            };
            let key = format!("{section}.{name}");
            self.value(field, &key, &value)?;
            if checked.insert(field.name.to_owned(), value).is_some() {
                return Err(Error::Conflict {
                    key: format!("{section}.{}", field.name),
                    origin: self.origin.clone(),
                    reason: format!(
                        "is set twice, by this name and by its older name `{}`; remove one",
                        field.alias.unwrap_or_default()
                    ),
                });
            }
        }
        Ok(Value::new(uri.as_ref(), ValueKind::Table(checked)))
    }

    fn value<S: Section>(&self, field: &Field<S>, key: &str, value: &Value) -> Result<(), Error> {
        let names_code = key.starts_with("provider.") && matches!(field.name, "path" | "symbol");
        if names_code && !self.trusted {
            return Err(Error::UntrustedPlugin { key: key.to_owned(), origin: self.origin.clone() });
        }
        // The environment is not trusted to name plugins either, but it may set these keys.
        let is_working_directory = !self.trusted && matches!(self.origin, Origin::File(_));
        let names_log_file =
            key == "log.output" && matches!(LogOutput::read(value), Some(LogOutput::File(_)));
        if is_working_directory && (key == "ipc.ptracer" || names_log_file) {
            return Err(Error::UntrustedKey { key: key.to_owned(), origin: self.origin.clone() });
        }
        (field.set)(&mut S::default(), value).ok_or_else(|| self.bad_value(key, value, field.expected))
    }

    /// A section whose keys are names.
    fn sets(
        &self,
        section: &'static str,
        value: Value,
        entry: impl Fn(&str, Value) -> Result<Value, Error>,
    ) -> Result<Value, Error> {
        let expected = match section {
            "shared_limits" => "a table: names and sizes under a line [shared_limits]".to_owned(),
            _ => format!("a table: keys under a line [{section}.<name>]"),
        };
        let (uri, table) = self.table(section, value, &expected)?;
        let mut checked = Tree::new();
        for (name, value) in sorted(table) {
            if !is_name(&name) {
                return Err(Error::BadName {
                    section,
                    name: shown::quoted(&name),
                    origin: self.origin.clone(),
                });
            }
            let value = entry(&format!("{section}.{name}"), value)?;
            checked.insert(name, value);
        }
        Ok(Value::new(uri.as_ref(), ValueKind::Table(checked)))
    }

    fn table(&self, key: &str, value: Value, expected: &str) -> Result<(Option<String>, Tree), Error> {
        let uri = value.origin().map(ToOwned::to_owned);
        match value.kind {
            ValueKind::Table(table) => Ok((uri, table)),
            _ => Err(self.bad_value(key, &value, expected)),
        }
    }

    fn bad_value(&self, key: &str, value: &Value, expected: &str) -> Error {
        Error::BadValue {
            key: key.to_owned(),
            value: shown::value(value),
            origin: self.origin.clone(),
            expected: expected.to_owned(),
        }
    }

    fn unknown_key(&self, section: &str, name: &str, names: &[&str]) -> Error {
        let in_section = |name: &str| {
            if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
        };
        Error::UnknownKey {
            key: in_section(&shown::plain(name)),
            origin: self.origin.clone(),
            closest: closest(name, names.iter().copied())
                .map(|name| in_section(&name))
                .or_else(|| elsewhere(name)),
            valid: names.iter().map(|name| in_section(name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_variables_follow_from_keys() {
        assert_eq!(variable_name("ipc.exchange"), "UMF_IPC_EXCHANGE");
        assert_eq!(variable_name("pool.my-pool.kind"), "UMF_POOL_MY_POOL_KIND");
    }

    #[test]
    fn only_what_is_alike_is_suggested() {
        assert_eq!(closest("exchagne", ["exchange", "limit"]).as_deref(), Some("exchange"));
        assert_eq!(closest("zzz", ["exchange", "limit"]), None);
    }

    #[test]
    fn every_default_is_a_valid_value() {
        fn all<S: Section>() {
            for field in S::FIELDS.iter().filter(|field| field.name != "params") {
                let text = (field.text)(&S::default());
                let value = Value::new(None, text.as_str());
                assert!((field.set)(&mut S::default(), &value).is_some(), "{}: {text}", field.name);
            }
        }
        all::<Ipc>();
        all::<Pool>();
        all::<Provider>();
        all::<Link>();
        all::<Log>();
    }
}
