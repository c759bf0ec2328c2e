//! Merged values become typed settings.

use config::{Value, ValueKind};

use crate::field::{Section, Setting};
use crate::layer::{Layers, Tree};
use crate::settings::{Pool, Provider, SharedLimit};
use crate::{ByteSize, Error, Settings, shown};

/// Reads the merged layers. Each layer has been checked, so that what is left to refuse is what only
/// shows in all of them together.
pub(crate) fn decode(layers: &Layers) -> Result<Settings, Error> {
    let merged = layers.merge()?;
    let mut settings = Settings::default();
    let mut decoder = Decoder { layers, origins: &mut settings.origins };
    decoder.section(&mut settings.ipc, "ipc", merged.get("ipc"))?;
    decoder.section(&mut settings.link, "link", merged.get("link"))?;
    decoder.section(&mut settings.log, "log", merged.get("log"))?;

    let pools = table(merged.get("pool"));
    let defaults = pools.and_then(|pools| pools.get("defaults"));
    decoder.section(&mut settings.pool.defaults, "pool.defaults", defaults)?;
    for (name, value) in pools.into_iter().flatten() {
        if name == "defaults" {
            continue;
        }
        let mut pool = settings.pool.defaults.clone();
        decoder.inherit::<Pool>("pool.defaults", &format!("pool.{name}"));
        decoder.section(&mut pool, &format!("pool.{name}"), Some(value))?;
        settings.pool.named.insert(name.clone(), pool);
    }

    for (name, value) in table(merged.get("provider")).into_iter().flatten() {
        let mut provider = Provider::of_name(name);
        decoder.section(&mut provider, &format!("provider.{name}"), Some(value))?;
        settings.provider.insert(name.clone(), provider);
    }

    for (name, value) in table(merged.get("shared_limits")).into_iter().flatten() {
        let key = format!("shared_limits.{name}");
        let limit =
            ByteSize::read(value).ok_or_else(|| decoder.bad_value(&key, value, ByteSize::EXPECTED))?;
        settings.shared_limits.insert(name.clone(), limit);
        decoder.origins.insert(key, layers.origin(value));
    }

    references(&settings)?;
    plugins(&settings)?;
    Ok(settings)
}

struct Decoder<'a> {
    layers: &'a Layers,
    origins: &'a mut std::collections::BTreeMap<String, crate::Origin>,
}

impl Decoder<'_> {
    fn section<S: Section>(
        &mut self,
        into: &mut S,
        section: &str,
        value: Option<&Value>,
    ) -> Result<(), Error> {
        let Some(table) = table(value) else {
            return Ok(());
        };
        for field in S::FIELDS {
            let Some(value) = table.get(field.name) else {
                continue;
            };
            let key = format!("{section}.{}", field.name);
            (field.set)(into, value).ok_or_else(|| self.bad_value(&key, value, field.expected))?;
            self.origins.insert(key, self.layers.origin(value));
        }
        Ok(())
    }

    fn inherit<S: Section>(&mut self, from: &str, to: &str) {
        for field in S::FIELDS {
            let key = |section| format!("{section}.{}", field.name);
            if let Some(origin) = self.origins.get(&key(from)).cloned() {
                self.origins.insert(key(to), origin);
            }
        }
    }

    fn bad_value(&self, key: &str, value: &Value, expected: &str) -> Error {
        Error::BadValue {
            key: key.to_owned(),
            value: shown::value(value),
            origin: self.layers.origin(value),
            expected: expected.to_owned(),
        }
    }
}

fn table(value: Option<&Value>) -> Option<&Tree> {
    match value.map(|value| &value.kind) {
        Some(ValueKind::Table(table)) => Some(table),
        _ => None,
    }
}

/// Pools name provider sets and shared limits that exist.
fn references(settings: &Settings) -> Result<(), Error> {
    let unknown = |key: String, value: &str, valid: Vec<String>| Error::UnknownReference {
        origin: settings.origin(&key).clone(),
        value: shown::quoted(value),
        key,
        valid,
    };
    let defaults = [("defaults", &settings.pool.defaults)];
    let named = settings.pool.named.iter();
    let named = named.map(|(name, pool)| (name.as_str(), pool));
    for (name, pool) in defaults.into_iter().chain(named) {
        if settings.provider_set(&pool.provider).is_none() {
            let valid = settings.provider.keys().cloned().collect();
            return Err(unknown(format!("pool.{name}.provider"), &pool.provider, valid));
        }
        if let SharedLimit::Named(limit) = &pool.shared_limit
            && !settings.shared_limits.contains_key(limit)
        {
            let valid = settings.shared_limits.keys().cloned().collect();
            return Err(unknown(format!("pool.{name}.shared_limit"), limit, valid));
        }
    }
    Ok(())
}

/// Plugins have a path, and nothing else has.
fn plugins(settings: &Settings) -> Result<(), Error> {
    for (name, provider) in &settings.provider {
        let is_plugin = provider.kind == "plugin";
        // The loader of Level Zero and the driver of CUDA are code, too.
        let path =
            provider.path.as_ref().filter(|_| !matches!(provider.kind.as_str(), "level-zero" | "cuda"));
        let (key, reason) = match (is_plugin, path, &provider.symbol) {
            (true, None, _) => ("kind", format!("a plugin needs a path; set `provider.{name}.path`")),
            (false, Some(_), _) => {
                ("path", format!("only a plugin has a path; set `provider.{name}.kind` to \"plugin\""))
            }
            (false, None, Some(_)) => {
                ("symbol", format!("only a plugin has a symbol; set `provider.{name}.kind` to \"plugin\""))
            }
            _ => continue,
        };
        let key = format!("provider.{name}.{key}");
        return Err(Error::Conflict { origin: settings.origin(&key).clone(), key, reason });
    }
    Ok(())
}
