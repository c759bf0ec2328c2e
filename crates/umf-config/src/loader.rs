//! From sources to settings.

use config::{Config, ConfigError, Source, Value, ValueKind};

use crate::check::{self, Layer};
use crate::file::Found;
use crate::schema::{Schema, Tree};
use crate::strict::Trust;
use crate::{Context, Error, Loaded, Origin, environment, file, locate};

/// Loads settings: defaults, then files, then the environment, then what the program sets here; later
/// ones win.
///
/// The file that `UMF_TOML` names is read alone, and must be there. Without it, the system's
/// (`/etc/umf/umf.toml`), the user's (`$XDG_CONFIG_HOME/umf/umf.toml` or `~/.config/umf/umf.toml`) and
/// the working directory's (`./umf.toml`) are merged key by key, each as far as it exists, the last
/// one the strongest. `UMF_SET` is TOML, stronger than files and weaker than other variables. A variable
/// that is empty counts as unset.
///
/// A program may be started in a directory that other users can write. The working directory's file
/// counts only if it belongs to the effective user or root, no other user can write it, and it is
/// not a symbolic link. Otherwise it is ignored with a [`Warning`](crate::Warning). If it sets a value
/// that it may not set ([`Error::Refused`]), loading fails.
///
/// In a process that has more rights than the user who started it (`AT_SECURE`) only the system's file
/// and the program count.
#[derive(Clone, Debug)]
#[must_use = "a loader does nothing before `load`"]
pub struct Loader {
    context: Context,
    overrides: Vec<(String, ValueKind)>,
}

/// The deepest key that `set` takes apart, `provider.<name>.params.<key>`; what is behind is one key.
const KEY_DEPTH: usize = 4;

impl Loader {
    /// A loader that looks at this process.
    pub fn new() -> Self {
        Self::with_context(Context::process())
    }

    /// A loader that looks at `context` and nothing else but the files that follow from it.
    pub const fn with_context(context: Context) -> Self {
        Self { context, overrides: Vec::new() }
    }

    /// Sets a key, such as `ipc.exchange` or `pool.small.capacity`, over all other sources; of two
    /// values for one key the later wins. A wrong key or value shows in [`Loader::load`].
    pub fn set(mut self, key: impl Into<String>, value: impl Into<ValueKind>) -> Self {
        self.overrides.push((key.into(), value.into()));
        self
    }

    /// Reads all sources.
    ///
    /// # Errors
    /// A file that cannot be read or understood, a key or value that means nothing; see [`Error`]. A wrong
    /// value is an error also where a stronger source replaces it.
    pub fn load(self, schema: Schema) -> Result<Loaded, Error> {
        let (mut layers, mut warnings, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for candidate in locate::candidates(&self.context) {
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

        // Names that files and the program declare are what variables may mean.
        let declared: Vec<Layer> = layers.iter().chain(&program).cloned().collect();
        let known = check::kinds(&schema, &declared);
        layers.extend(environment::layers(&self.context, &schema, &known, &mut warnings)?);
        layers.extend(program);

        let kinds = check::kinds(&schema, &layers);
        let mut builder = Config::builder();
        for layer in layers {
            builder = builder.add_source(Checked(check::layer(&schema, &kinds, layer)?));
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

/// A source that was checked: the merging crate takes the first level of keys for path expressions, and
/// would obey `a[1000000000]`.
#[derive(Clone, Debug)]
struct Checked(Tree);

impl Source for Checked {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Tree, ConfigError> {
        Ok(self.0.clone())
    }
}

/// Puts `value` under `path`, making the tables on the way.
fn nest(path: &[&str], value: ValueKind) -> Tree {
    let uri = Origin::Program.uri();
    let mut tree = Tree::new();
    if let Some((first, rest)) = path.split_first() {
        let kind = if rest.is_empty() { value } else { ValueKind::Table(nest(rest, value)) };
        tree.insert((*first).to_owned(), with_origin(kind, uri.as_ref()));
    }
    tree
}

/// A value of the program, whose parts have its origin too.
fn with_origin(kind: ValueKind, uri: Option<&String>) -> Value {
    let kind = match kind {
        ValueKind::Array(list) => {
            ValueKind::Array(list.into_iter().map(|value| with_origin(value.kind, uri)).collect())
        }
        ValueKind::Table(table) => ValueKind::Table(
            table.into_iter().map(|(key, value)| (key, with_origin(value.kind, uri))).collect(),
        ),
        // Whole numbers are of one type.
        ValueKind::U64(number) => i64::try_from(number).map_or(ValueKind::U64(number), ValueKind::I64),
        other => other,
    };
    Value::new(uri, kind)
}
