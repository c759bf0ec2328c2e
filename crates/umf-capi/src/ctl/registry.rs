//! Registry of providers and pools by kind and name; and the defaults for new ones, set by C or by
//! `UMF_CONF` and `UMF_CONF_FILE`.

use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::io::Read as _;
use std::sync::{Arc, PoisonError, RwLock};

use umf_os::environment::variable;
use umf_sync::Lock;

use super::query::CtlAccess;
use super::{CtlQuery, dispatch, no_such_path};
use crate::boundary::{Code, Failure, Outcome};

/// The kind of a named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pool,
    Provider,
}

/// A named provider or pool. It is not destroyed while the gate is held for reading.
#[derive(Clone)]
pub(super) struct Entry {
    kind: Kind,
    name: String,
    pub(super) object: usize,
    gate: Arc<RwLock<()>>,
}

impl Entry {
    /// Runs `ask` on the object, unless it is being destroyed.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(usize) -> T) -> Option<T> {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let is_there = LIVE.lock().iter().any(|entry| entry.kind == self.kind && entry.object == self.object);
        is_there.then(|| ask(self.object))
    }
}

static LIVE: Lock<Vec<Entry>> = Lock::new(Vec::new());

/// Registers an object under its name.
pub(crate) fn register(kind: Kind, name: &CStr, object: usize) {
    let name = name.to_string_lossy().into_owned();
    let entry = Entry { kind, name, object, gate: Arc::new(RwLock::new(())) };
    LIVE.lock().push(entry);
}

/// Unregisters an object, and waits until no query uses it.
pub(crate) fn unregister(kind: Kind, object: usize) {
    let gone = {
        let mut live = LIVE.lock();
        let place = live.iter().position(|entry| entry.kind == kind && entry.object == object);
        place.map(|place| live.remove(place))
    };
    if let Some(entry) = gone {
        drop(entry.gate.write().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Returns all objects of this name, in order of creation.
pub(super) fn named(kind: Kind, name: &str) -> Vec<Entry> {
    LIVE.lock().iter().filter(|entry| entry.kind == kind && entry.name == name).cloned().collect()
}

/// A value that is written to each new object of a name.
#[derive(Clone)]
struct Default {
    kind: Kind,
    name: String,
    path: String,
    source: i32,
    value: Vec<u8>,
}

static DEFAULTS: Lock<Vec<Default>> = Lock::new(Vec::new());

/// Answers `<kind>.default.<name>.<path>`.
pub(super) fn answer_default(kind: Kind, query: &CtlQuery<'_>) -> Outcome<()> {
    let (name, below) = query.name()?;
    let path = below.take_path()?;
    let same = |known: &Default| known.kind == kind && known.name == name && known.path == path;
    match below.access() {
        CtlAccess::Run => Err(Failure::argument("a default is read or set")),
        CtlAccess::Read => {
            let value = DEFAULTS.lock().iter().find(|known| same(known)).map(|known| known.value.clone());
            below.give_bytes(&value.ok_or(no_such_path())?)
        }
        CtlAccess::Write => {
            let value = below.bytes()?.to_vec();
            let new = Default { kind, name: name.clone(), path: path.clone(), source: below.source(), value };
            let mut defaults = DEFAULTS.lock();
            // Later values are written later.
            defaults.retain(|known| !same(known));
            defaults.push(new);
            Ok(())
        }
    }
}

/// Writes the defaults of a name to a new object. Logs those that it refuses.
pub(crate) fn apply_defaults(
    kind: Kind,
    name: &CStr,
    mut write: impl FnMut(i32, &CStr, *mut c_void, usize) -> Code,
) {
    let name = name.to_string_lossy();
    let all: Vec<_> =
        DEFAULTS.lock().iter().filter(|known| known.kind == kind && known.name == name).cloned().collect();
    // A value without a path is only read back.
    for mut default in all.into_iter().filter(|default| !default.path.is_empty()) {
        let Ok(path) = CString::new(default.path.as_str()) else { continue };
        let len = default.value.len();
        let code = write(default.source, &path, default.value.as_mut_ptr().cast(), len);
        if code != crate::boundary::SUCCESS {
            tracing::warn!("{name} does not take the default for {} (result {code})", default.path);
        }
    }
}

/// Removes all defaults, when the library ends.
pub(crate) fn forget_defaults() {
    DEFAULTS.lock().clear();
}

/// The largest configuration file in bytes.
const FILE_LIMIT: u64 = 1 << 20;

/// Applies both configuration variables. Logs what cannot be set.
pub(crate) fn apply_config() {
    if let Some(text) = variable("UMF_CONF").and_then(|text| text.into_string().ok()) {
        set_all("UMF_CONF", &text);
    }
    if let Some(path) = variable("UMF_CONF_FILE").filter(|path| !path.is_empty()) {
        match read(path.as_ref()) {
            Ok(text) => set_all("UMF_CONF_FILE", &without_comments(&text)),
            Err(error) => tracing::error!("UMF_CONF_FILE: {}: {error}", path.to_string_lossy()),
        }
    }
}

fn read(path: &std::path::Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_LIMIT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_LIMIT {
        return Err(std::io::Error::other("longer than 1 MiB"));
    }
    Ok(text)
}

/// Removes comments, from `#` to the end of the line, and all white space.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(str::chars).filter(|character| !character.is_whitespace()).collect()
}

/// Sets each `path=value` between semicolons.
fn set_all(source: &str, text: &str) {
    for statement in text.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let Some((path, value)) = statement.split_once('=') else {
            tracing::error!("{source}: {statement:?} is not of the form path=value");
            continue;
        };
        let Ok(value) = CString::new(value.trim()) else { continue };
        if let Err(failure) = dispatch(&CtlQuery::configured(path.trim(), &value)) {
            tracing::error!("{source}: {}: {failure}", path.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_white_space_go() {
        assert_eq!(without_comments("a = 1 ; # one\n b=2,\n 3;#x"), "a=1;b=2,3;");
    }
}
