//! Variables of the form `UMF_<SECTION>_<KEY>`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use config::{Value, ValueKind};

use crate::field::{Section, Setting};
use crate::layer::{Layer, Layers, Tree, nest};
use crate::settings::{Ipc, Link, Log, Params, Pool, Provider};
use crate::{ByteSize, Context, Error, Origin, Warning, file, legacy, schema, shown};

/// The sections whose keys are names.
const NAMED: [&str; 3] = ["pool", "provider", "shared_limits"];

/// The names of pools, provider sets and shared limits that other sources speak of, by section. A
/// variable that fits one of them in all but letter case and hyphens means it.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<&'static str, BTreeSet<String>>);

impl Names {
    /// Takes up the names in what one more source says.
    pub(crate) fn add_tree(&mut self, tree: &Tree) {
        for section in NAMED {
            if let Some(ValueKind::Table(table)) = tree.get(section).map(|value| &value.kind) {
                self.0.entry(section).or_default().extend(table.keys().cloned());
            }
        }
    }

    /// Takes up the name in a key, such as `small` in `pool.small.kind`.
    pub(crate) fn add_key(&mut self, key: &str) {
        let mut parts = key.split('.');
        let (section, name) = (parts.next(), parts.next());
        for known in NAMED.into_iter().filter(|known| section == Some(known)) {
            self.0.entry(known).or_default().extend(name.map(ToOwned::to_owned));
        }
    }

    fn resolve(&self, section: &'static str, part: &str, variable: &str) -> Result<String, Error> {
        let built_in = match section {
            "pool" => &["defaults"][..],
            "provider" => &["host", "dma-buf", "level-zero", "cuda"][..],
            _ => &[],
        };
        let upper = |name: &str| name.replace('-', "_").to_uppercase();
        let known = self.0.get(section).into_iter().flatten();
        let mut fits: Vec<_> = known
            .map(String::as_str)
            .chain(built_in.iter().copied())
            .filter(|name| upper(name) == part)
            .collect();
        fits.sort_unstable();
        fits.dedup();
        match fits[..] {
            [] => Ok(part.to_lowercase()),
            [name] => Ok(name.to_owned()),
            _ => Err(Error::AmbiguousVariable {
                variable: variable.to_owned(),
                candidates: fits.iter().map(|name| format!("{section}.{name}")).collect(),
            }),
        }
    }
}

/// The key that a variable sets.
struct Target {
    path: Vec<String>,
    expected: &'static str,
    is_table: bool,
    /// Whether the variable uses the key's older name.
    is_alias: bool,
}

/// Adds a layer for each variable that sets a key; the others are warnings.
pub(crate) fn read(
    context: &Context,
    names: &Names,
    layers: &mut Layers,
    warnings: &mut Vec<Warning>,
) -> Result<(), Error> {
    let mut found = Vec::new();
    for (name, value) in context.variables() {
        if !name.as_bytes().starts_with(b"UMF_") {
            continue;
        }
        let target = match name.to_str() {
            Some(name) if legacy::is_known(name) => continue,
            Some(name) => target(name, names)?,
            None => None,
        };
        match target {
            Some(target) => found.push((target, name.to_string_lossy().into_owned(), value)),
            None => warnings.push(unknown(&name.to_string_lossy())),
        }
    }
    // Older names first, so that the present name of the same key wins.
    found.sort_by_key(|(target, ..)| !target.is_alias);
    for (target, variable, value) in found {
        let uri = layers.next_uri();
        let key = target.path.join(".");
        let path: Vec<_> = target.path.iter().map(String::as_str).collect();
        let value = parse(&target, &key, &variable, value, &uri)?;
        let origin = Origin::Environment(variable);
        let tree = schema::check(nest(&path, value), &origin, false)?;
        layers.push(Layer { origin, tree });
    }
    Ok(())
}

fn parse(target: &Target, key: &str, variable: &str, value: &OsStr, uri: &String) -> Result<Value, Error> {
    let Some(text) = value.to_str() else {
        return Err(Error::NotUnicode {
            variable: variable.to_owned(),
            key: key.to_owned(),
            expected: target.expected.to_owned(),
        });
    };
    if !target.is_table {
        return Ok(Value::new(Some(uri), text));
    }
    let tree = file::parse(&format!("value = {text}"), uri).unwrap_or_default();
    let value = match (tree.len(), tree.get("value")) {
        // More than the one key would be text that breaks out of its line.
        (1, Some(value)) => Params::read(value).map(|_| value.clone()),
        _ => None,
    };
    value.ok_or_else(|| Error::BadValue {
        key: key.to_owned(),
        value: shown::quoted(text),
        origin: Origin::Environment(variable.to_owned()),
        expected: target.expected.to_owned(),
    })
}

fn target(variable: &str, names: &Names) -> Result<Option<Target>, Error> {
    let Some(rest) = variable.strip_prefix("UMF_") else {
        return Ok(None);
    };
    if let Some(key) = rest.strip_prefix("IPC_") {
        return Ok(plain::<Ipc>("ipc", key));
    }
    if let Some(key) = rest.strip_prefix("LINK_") {
        return Ok(plain::<Link>("link", key));
    }
    if let Some(key) = rest.strip_prefix("LOG_") {
        return Ok(plain::<Log>("log", key));
    }
    if let Some(rest) = rest.strip_prefix("POOL_") {
        return named::<Pool>("pool", rest, variable, names);
    }
    if let Some(rest) = rest.strip_prefix("PROVIDER_") {
        return named::<Provider>("provider", rest, variable, names);
    }
    if let Some(part) = rest.strip_prefix("SHARED_LIMITS_") {
        if !is_part(part) {
            return Ok(None);
        }
        let name = names.resolve("shared_limits", part, variable)?;
        return Ok(Some(Target {
            path: vec!["shared_limits".to_owned(), name],
            expected: ByteSize::EXPECTED,
            is_table: false,
            is_alias: false,
        }));
    }
    Ok(None)
}

/// A key of a section of this name.
fn plain<S: Section>(section: &str, key: &str) -> Option<Target> {
    let is_upper = !key.bytes().any(|byte| byte.is_ascii_lowercase());
    let key = key.to_lowercase();
    let field = S::field(&key).filter(|_| is_upper)?;
    Some(Target {
        is_alias: field.name != key,
        is_table: field.name == "params",
        expected: field.expected,
        path: vec![section.to_owned(), key],
    })
}

/// A key of a named section: the longest key that the variable ends with, the name before it.
fn named<S: Section>(
    section: &'static str,
    rest: &str,
    variable: &str,
    names: &Names,
) -> Result<Option<Target>, Error> {
    let splits = rest.match_indices('_');
    for (at, _) in splits {
        let (part, key) = (&rest[..at], &rest[at + 1..]);
        if !is_part(part) {
            continue;
        }
        if let Some(mut target) = plain::<S>(section, key) {
            target.path.insert(1, names.resolve(section, part, variable)?);
            return Ok(Some(target));
        }
    }
    Ok(None)
}

/// A name as it stands in a variable.
fn is_part(part: &str) -> bool {
    schema::is_name(part) && !part.bytes().any(|byte| byte.is_ascii_lowercase())
}

fn unknown(variable: &str) -> Warning {
    let mut known: Vec<_> = schema::known_keys()
        .into_iter()
        .map(|key| {
            let common = key.variable.replace("UMF_POOL_<NAME>", "UMF_POOL_DEFAULTS");
            common.replace("UMF_PROVIDER_<NAME>", "UMF_PROVIDER_HOST")
        })
        .filter(|name| !name.contains('<'))
        .collect();
    known.extend(legacy::names().map(ToOwned::to_owned));
    Warning::UnknownVariable {
        closest: schema::closest(variable, known.iter().map(String::as_str)),
        variable: shown::plain(variable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(variable: &str) -> Option<String> {
        let target = target(variable, &Names::default()).unwrap();
        target.map(|target| target.path.join("."))
    }

    #[test]
    fn the_longest_key_that_a_variable_ends_with_is_meant() {
        assert_eq!(path("UMF_IPC_EXCHANGE").unwrap(), "ipc.exchange");
        assert_eq!(path("UMF_POOL_DEFAULTS_SLAB_MIN_SIZE").unwrap(), "pool.defaults.slab_min_size");
        assert_eq!(path("UMF_PROVIDER_BIG_ONE_NUMA_NODES").unwrap(), "provider.big_one.numa_nodes");
        assert_eq!(path("UMF_SHARED_LIMITS_JOB").unwrap(), "shared_limits.job");
    }

    #[test]
    fn what_does_not_name_a_key_is_unknown() {
        for variable in [
            "UMF_POOL_CAPACITY",
            "UMF_IPC_",
            "UMF_POOL__KIND",
            "UMF_ipc_EXCHANGE",
            "UMF_IPC_exchange",
            "UMF_",
            "UMF_SHARED_LIMITS_",
        ] {
            assert_eq!(path(variable), None, "{variable}");
        }
    }
}
