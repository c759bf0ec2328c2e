//! [`Loader`]: reads, checks and merges all sources; and [`Context`], its external input except files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use config::{Config, ConfigError, Source, Value, ValueKind};

use crate::check::{self, Layer};
use crate::file::Found;
use crate::schema::{Schema, Tree};
use crate::strict::Trust;
use crate::{Error, Loaded, Origin, environment, file};

/// A loader of settings. Files override defaults, the environment overrides files, and the program
/// overrides the environment.
///
/// If `UMF_TOML` names a file, it is the only file, and must exist. Otherwise the files of the
/// system (`/etc/umf/umf.toml`), of the user (`$XDG_CONFIG_HOME/umf/umf.toml` or
/// `~/.config/umf/umf.toml`) and of the working directory (`./umf.toml`) are merged key by key;
/// later ones override earlier ones. `UMF_SET` is TOML; it overrides files, and other variables
/// override it. Empty variables are ignored.
///
/// The working directory may be writable by other users. Its file is read only if it belongs to the
/// effective user or root, no other user can write it, and it is not a symbolic link. Otherwise it
/// is ignored with a [`Warning`](crate::Warning). If it sets a value that it may not set
/// ([`Error::Refused`]), loading fails.
///
/// In a process with more rights than its caller (`AT_SECURE`), only the system's file and the
/// program's values are used.
#[derive(Clone, Debug)]
#[must_use = "a loader does nothing before `load`"]
pub struct Loader {
    context: Context,
    overrides: Vec<(String, ValueKind)>,
}

/// Limit of the parts into which `set` splits a key: `provider.<name>.params.<key>`. The last part
/// may contain dots.
const KEY_DEPTH: usize = 4;

impl Loader {
    /// Returns a loader with the context of this process.
    pub fn new() -> Self {
        Self::with_context(Context::process())
    }

    /// Returns a loader whose only input is `context` and the files to which it leads.
    pub const fn with_context(context: Context) -> Self {
        Self { context, overrides: Vec::new() }
    }

    /// Sets a key, such as `ipc.exchange` or `pool.small.capacity`. Overrides all other sources and
    /// earlier calls. [`Loader::load`] reports an invalid key or value.
    pub fn set(mut self, key: impl Into<String>, value: impl Into<ValueKind>) -> Self {
        self.overrides.push((key.into(), value.into()));
        self
    }

    /// Reads all sources.
    ///
    /// # Errors
    /// [`Error`]: a file that cannot be read or parsed, an unknown key, an invalid value. A value that
    /// another source overrides must be valid too.
    pub fn load(self, schema: Schema) -> Result<Loaded, Error> {
        let (mut layers, mut warnings, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for candidate in file::candidates(&self.context) {
            let text = match file::read(&candidate, self.context.user)? {
                Found::Nothing => continue,
                Found::Skipped(warning) => {
                    warnings.push(warning);
                    continue;
                }
                Found::Text(text) => text,
            };
            let origin = |line| Origin::line(&candidate.path, line);
            let tree = file::parse(&text, origin)
                .map_err(|(line, reason)| Error::FileSyntax { origin: origin(line), reason })?;
            let trust = if candidate.trusted { Trust::Full } else { Trust::WorkingDirectory };
            layers.push(Layer { tree, trust });
            files.push(candidate.path);
        }
        layers.extend(environment::umf_set(&self.context)?);
        let from_program = |(key, value): &(String, ValueKind)| {
            let path: Vec<_> = key.splitn(KEY_DEPTH, '.').collect();
            Layer { tree: nest(&path, value.clone()), trust: Trust::Full }
        };
        let program: Vec<Layer> = self.overrides.iter().map(from_program).collect();

        // Variables refer to the sets that files and the program declare.
        let declared: Vec<Layer> = layers.iter().chain(&program).cloned().collect();
        let known = check::kinds(&schema, &declared);
        layers.extend(environment::layers(&self.context, &schema, &known, &mut warnings)?);
        layers.extend(program);

        let kinds = check::kinds(&schema, &layers);
        let mut builder = Config::builder();
        for layer in layers {
            builder = builder.add_source(CheckedSource(check::layer(&schema, &kinds, layer)?));
        }
        let merged = builder.build().and_then(|config| config.collect());
        let merged = merged.map_err(|error| Error::Merge { reason: error.to_string() })?;
        let recognised = environment::recognised(&self.context, &schema);
        Ok(Loaded { schema, merged, kinds, files, warnings, recognised })
    }
}

impl Default for Loader {
    fn default() -> Self {
        Self::new()
    }
}

/// A source that was checked. The crate `config` parses top-level keys as path expressions, and
/// would allocate for an unchecked `a[1000000000]`.
#[derive(Clone, Debug)]
struct CheckedSource(Tree);

impl Source for CheckedSource {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Tree, ConfigError> {
        Ok(self.0.clone())
    }
}

/// Returns a table with `value` at `path`.
fn nest(path: &[&str], value: ValueKind) -> Tree {
    let uri = Origin::Program.uri();
    let mut tree = Tree::new();
    if let Some((first, rest)) = path.split_first() {
        let kind = if rest.is_empty() { value } else { ValueKind::Table(nest(rest, value)) };
        tree.insert((*first).to_owned(), with_origin(kind, uri.as_ref()));
    }
    tree
}

/// Sets the origin of a value and of all its parts.
fn with_origin(kind: ValueKind, uri: Option<&String>) -> Value {
    let kind = match kind {
        ValueKind::Array(list) => {
            ValueKind::Array(list.into_iter().map(|value| with_origin(value.kind, uri)).collect())
        }
        ValueKind::Table(table) => ValueKind::Table(
            table.into_iter().map(|(key, value)| (key, with_origin(value.kind, uri))).collect(),
        ),
        // `I64` is the only type of whole numbers that deserialization expects.
        ValueKind::U64(number) => i64::try_from(number).map_or(ValueKind::U64(number), ValueKind::I64),
        other => other,
    };
    Value::new(uri, kind)
}

/// The environment, folders and privileges of a process: all external input of loading except the
/// files.
///
/// A test constructs its own, and does not depend on the process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// Environment variables. Only `UMF_*` and `XDG_CONFIG_HOME` are read.
    pub env: BTreeMap<OsString, OsString>,
    /// The effective user id. A settings file in the working directory is read only if it belongs
    /// to this user or to root.
    pub user: u32,
    /// The working directory.
    pub cwd: Option<PathBuf>,
    /// The user's home folder.
    pub home: Option<PathBuf>,
    /// The folder of the system's configuration, `/etc`.
    pub system: Option<PathBuf>,
    /// Whether the process runs with more rights than its caller (`AT_SECURE`: set-user-id, file
    /// capabilities). Then all sources that the caller controls are ignored: the environment, the
    /// working directory and the user's folder. The system's file and the program's values are
    /// used.
    pub secure: bool,
}

impl Context {
    /// Returns a context of root without variables and folders.
    pub const fn empty() -> Self {
        Self { env: BTreeMap::new(), user: 0, cwd: None, home: None, system: None, secure: false }
    }

    /// Returns the current context of this process.
    pub fn process() -> Self {
        let env = umf_os::environment::variables()
            .filter(|(name, _)| name.as_bytes().starts_with(b"UMF_") || name == "XDG_CONFIG_HOME")
            .collect();
        Self {
            env,
            user: umf_os::process::effective_uid(),
            cwd: std::env::current_dir().ok(),
            home: umf_os::environment::home_dir(),
            system: Some(PathBuf::from("/etc")),
            secure: umf_os::environment::is_secure(),
        }
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Returns the value of a variable. Empty variables and those of a secure process are unset.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables().find(|(variable, _)| *variable == name).map(|(_, value)| value)
    }

    /// Returns all variables that are not empty; none in a secure process.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.env
            .iter()
            .filter(|(_, value)| !self.secure && !value.is_empty())
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_context_has_only_relevant_variables() {
        let context = Context::process();
        assert!(context.cwd.is_some_and(|cwd| cwd.is_absolute()));
        assert!(!context.env.contains_key(OsStr::new("PATH")));
    }

    #[test]
    fn empty_variables_and_those_of_a_secure_process_are_unset() {
        let mut context = Context::empty().with_variable("UMF_A", "").with_variable("UMF_B", "1");
        assert_eq!(context.variable("UMF_A"), None);
        assert_eq!(context.variable("UMF_B"), Some(OsStr::new("1")));
        context.secure = true;
        assert_eq!(context.variable("UMF_B"), None);
    }
}
