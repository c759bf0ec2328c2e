//! From sources to settings.

use crate::environment::{self, Names};
use crate::file::Found;
use crate::layer::{Layer, Layers, nest};
use crate::{Context, Error, Origin, Settings, Value, Warning, decode, file, legacy, locate, schema};

/// Loads settings: defaults, then files, then the environment, then what the program sets here; later
/// ones win.
///
/// The file that `UMF_TOML` names is read alone, and must be there. Without it, the system's
/// (`/etc/umf/umf.toml`), the user's (`$XDG_CONFIG_HOME/umf/umf.toml` or `~/.config/umf/umf.toml`) and
/// the working directory's (`./umf.toml`) are merged key by key, each as far as it exists, the last
/// one the strongest. A variable that is empty counts as unset.
///
/// A program may be started in a directory that other users can write. The working directory's file
/// counts only if it belongs to the effective user or root, no other user can write it, and it is
/// not a symbolic link. Otherwise it is ignored with a [`Warning`]. If it sets a plugin's path or
/// symbol, a log file or `ipc.ptracer`, loading fails.
///
/// In a process that has more rights than who started it (`AT_SECURE`) only the system's file and the
/// program count.
///
/// ```
/// use umf_config::{Context, Loader};
///
/// let context = Context::empty().with_variable("UMF_POOL_DEFAULTS_CAPACITY", "16");
/// let loaded = Loader::with_context(context)
///     .set("ipc.max_opened_bytes", "64MiB")
///     .load()?;
/// assert_eq!(loaded.settings.pool.defaults.capacity, 16);
/// assert_eq!(loaded.settings.ipc.max_opened_bytes.get(), 64 << 20);
/// # Ok::<(), umf_config::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a loader does nothing before `load`"]
pub struct Loader {
    context: Context,
    overrides: Vec<(String, Value)>,
}

/// The deepest key that `set` takes apart, `provider.<name>.params.<key>`; what is behind is one key.
const KEY_DEPTH: usize = 4;

/// What a [`Loader`] found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The settings in force.
    pub settings: Settings,
    /// What the user should hear of.
    pub warnings: Vec<Warning>,
}

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
    pub fn set(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.overrides.push((key.into(), value.into()));
        self
    }

    /// Reads all sources.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or understood, a key or value that means nothing, or settings that
    /// do not fit together; see [`Error`]. A wrong value is an error also where a stronger source
    /// replaces it.
    pub fn load(self) -> Result<Loaded, Error> {
        let mut layers = Layers::default();
        let mut warnings = Vec::new();
        let mut files = Vec::new();
        for candidate in locate::candidates(&self.context) {
            let text = match file::read(&candidate, self.context.user)? {
                Found::Nothing => continue,
                Found::Skipped(warning) => {
                    warnings.push(warning);
                    continue;
                }
                Found::Text(text) => text,
            };
            let tree = file::parse(&text, &layers.next_uri())
                .map_err(|reason| Error::FileSyntax { path: candidate.path.clone(), reason })?;
            let origin = Origin::File(candidate.path.clone());
            let tree = schema::check(tree, &origin, candidate.trusted)?;
            layers.push(Layer { origin, tree });
            files.push(candidate.path);
        }

        let mut names = Names::default();
        for layer in layers.iter() {
            names.add_tree(&layer.tree);
        }
        for (key, _) in &self.overrides {
            names.add_key(key);
        }
        legacy::read(&self.context, &mut layers, &mut warnings);
        environment::read(&self.context, &names, &mut layers, &mut warnings)?;
        for (key, value) in self.overrides {
            let path: Vec<_> = key.splitn(KEY_DEPTH, '.').collect();
            let value = value.into_config(&layers.next_uri());
            let tree = schema::check(nest(&path, value), &Origin::Builder, true)?;
            layers.push(Layer { origin: Origin::Builder, tree });
        }

        let mut settings = decode::decode(&layers)?;
        settings.files = files;
        settings.recognised = legacy::recognised(&self.context);
        Ok(Loaded { settings, warnings })
    }
}

impl Default for Loader {
    fn default() -> Self {
        Self::new()
    }
}
