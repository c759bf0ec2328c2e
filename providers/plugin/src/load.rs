//! [`PluginLoader`] and [`load`]: from a path to a provider.

use core::ffi::CStr;
use core::mem::ManuallyDrop;
use std::ffi::CString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use umf_core::{Error, MemoryKind, ProviderKind, Visibility};
use umf_sync::fork;

use super::error::PluginError;
use super::instance::Instance;
use super::provider::{PluginProvider, ProviderInfo};
use super::table::{Finalize, GetTable, State, Table};

/// The symbol that is looked for if none is named.
pub const DEFAULT_SYMBOL: &str = "umfPluginProviderOps";

/// The kind that a plugin's memory has if none is named.
pub const DEFAULT_KIND: ProviderKind = match ProviderKind::new("plugin") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// Loads the plugin at `path` and has it make a provider of the kind `kind`; what is not said is as
/// [`PluginLoader`] says.
///
/// # Errors
/// [`PluginError`].
pub fn load(
    path: &Path,
    symbol: Option<&str>,
    params: Option<&serde_json::Value>,
    kind: ProviderKind,
) -> Result<Arc<PluginProvider>, PluginError> {
    let mut loader = PluginLoader::new(path).kind(kind);
    if let Some(symbol) = symbol {
        loader = loader.symbol(symbol);
    }
    if let Some(params) = params {
        loader = loader.params(params.clone());
    }
    loader.load()
}

/// What to load, and how.
///
/// Loading runs the plugin's code, and trusts it to do what UMF's header says. Naming a file here
/// is what says that it is to be trusted; so that no other user can choose what runs, see the rules
/// for the file at the [crate's page](crate).
#[derive(Clone, Debug)]
pub struct PluginLoader {
    path: PathBuf,
    symbol: String,
    params: Option<serde_json::Value>,
    kind: ProviderKind,
    memory_kind: Option<MemoryKind>,
    visibility: Option<Visibility>,
}

impl PluginLoader {
    /// The plugin at `path`, with all else as the methods below say.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            symbol: DEFAULT_SYMBOL.to_owned(),
            params: None,
            kind: DEFAULT_KIND,
            memory_kind: None,
            visibility: None,
        }
    }

    /// The function that returns the table. Default: [`DEFAULT_SYMBOL`].
    #[must_use]
    pub fn symbol(mut self, symbol: impl Into<String>) -> Self {
        self.symbol = symbol.into();
        self
    }

    /// What the plugin's `initialize` is handed, as JSON. Default: nothing, which is NULL.
    #[must_use]
    pub fn params(mut self, params: serde_json::Value) -> Self {
        self.params = Some(params);
        self
    }

    /// The kind that stands in handles: importers find the plugin that can open one by it. Default:
    /// `plugin`; programs that load several give each a name of its own, the same in all processes.
    #[must_use]
    pub const fn kind(mut self, kind: ProviderKind) -> Self {
        self.kind = kind;
        self
    }

    /// What the memory is. Default: what the plugin says of a page that is allocated for this
    /// question and freed again (the property `POINTER_TYPE`), and host memory if it does not say.
    #[must_use]
    pub const fn memory_kind(mut self, memory_kind: MemoryKind) -> Self {
        self.memory_kind = Some(memory_kind);
        self
    }

    /// Whether a forked child shares the memory. Default: shared if the plugin has IPC handles,
    /// otherwise private.
    #[must_use]
    pub const fn visibility(mut self, visibility: Visibility) -> Self {
        self.visibility = Some(visibility);
        self
    }

    /// Loads the plugin and initialises it.
    ///
    /// # Errors
    /// [`PluginError`].
    pub fn load(self) -> Result<Arc<PluginProvider>, PluginError> {
        let path = check_file(&self.path)?;
        let params = self.params.as_ref().map(json).transpose();
        let params = params.map_err(|source| PluginError::Params { path: path.clone(), source })?;
        // SAFETY: runs the initialisers of a file that the caller named to have it run, and that only
        // root and this user can have put there.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|source| PluginError::NotASharedObject { path: path.clone(), source })?;
        let table = self.table(&path, &library)?;
        self.start(library, &table, params.as_deref()).map_err(|source| PluginError::Start { path, source })
    }

    fn table(&self, path: &Path, library: &Library) -> Result<Table, PluginError> {
        // SAFETY: a function without parameters that returns a table is what the caller says that
        // the symbol is.
        let get_table = unsafe { library.get::<GetTable>(self.symbol.as_bytes()) };
        let get_table = get_table.map_err(|source| PluginError::NoSymbol {
            path: path.to_owned(),
            symbol: self.symbol.clone(),
            source,
        })?;
        // SAFETY: as above; and a table that a function of UMF's returns is as long as its version
        // says.
        unsafe { Table::read(get_table()) }.map_err(|fault| PluginError::Table {
            path: path.to_owned(),
            symbol: self.symbol.clone(),
            fault,
        })
    }

    fn start(
        &self,
        library: Library,
        table: &Table,
        params: Option<&CStr>,
    ) -> umf_core::Result<Arc<PluginProvider>> {
        // SAFETY: the table is this library's; the caller trusts it to do what UMF says.
        let state = unsafe { Instance::initialize(table, params) }?;
        let loaded = LoadedPlugin {
            finalize: table.functions.finalize,
            state,
            library: ManuallyDrop::new(library),
            generation: fork::generation(),
            parent_only: false,
        };
        let mut instance = Instance::loaded(*table, state, loaded)?;
        let page = instance.min_page_size()?;
        let handle_size = instance.handle_size()?;
        let memory_kind = match self.memory_kind {
            Some(known) => known,
            None => memory_kind_of(&instance, page)?.unwrap_or(MemoryKind::Host),
        };
        let default = if handle_size.is_some() { Visibility::Shared } else { Visibility::Private };
        let visibility = self.visibility.unwrap_or(default);
        instance.set_parent_only(visibility == Visibility::Shared);
        let name = Some(instance.name()?).filter(|name| !name.is_empty());
        let about = ProviderInfo {
            name: name.unwrap_or_else(|| self.kind.as_str().to_owned()),
            kind: self.kind,
            memory_kind,
            visibility,
            page,
            handle_size,
            exact_sizes: false,
        };
        Ok(PluginProvider::new(instance, about))
    }
}

/// A plugin that was initialised. Finalises and unloads it when dropped.
pub(crate) struct LoadedPlugin {
    finalize: Finalize,
    state: State,
    library: ManuallyDrop<Library>,
    /// The process that initialised it.
    generation: u32,
    /// Whether a forked child neither finalises nor unloads it.
    pub(crate) parent_only: bool,
}

impl Drop for LoadedPlugin {
    fn drop(&mut self) {
        if self.parent_only && self.generation != fork::generation() {
            // The memory is the parent's: the code stays loaded, and nothing is undone.
            return;
        }
        // SAFETY: initialised once, and finalised here alone; the instance that used it is gone.
        let code = unsafe { (self.finalize)(self.state) };
        if code != 0 {
            tracing::warn!(code, "finalize of a plugin failed");
        }
        // SAFETY: not used again.
        unsafe { ManuallyDrop::drop(&mut self.library) };
    }
}

fn json(params: &serde_json::Value) -> serde_json::Result<CString> {
    // JSON writes the NUL in a string as six other characters.
    Ok(CString::new(serde_json::to_vec(params)?).unwrap_or_default())
}

/// `UMF_MEMORY_PROPERTY_POINTER_TYPE`.
const POINTER_TYPE: i32 = 20;

/// What the plugin says that its memory is, if it says so. It may say so of an allocation only, so
/// one is made.
fn memory_kind_of(instance: &Instance, page: usize) -> umf_core::Result<Option<MemoryKind>> {
    if instance.table().functions.ext_get_allocation_properties.is_none() {
        return Ok(None);
    }
    let probe = instance.allocate(page, page, false)?;
    let answer = instance.property(probe, POINTER_TYPE);
    // SAFETY: allocated above, and not in use.
    unsafe { instance.free(probe, page) }?;
    match answer {
        Ok(1) => Ok(Some(MemoryKind::Host)),
        Ok(2) => Ok(Some(MemoryKind::Device)),
        Ok(3) => Ok(Some(MemoryKind::Managed)),
        Ok(0) | Err(Error::NotSupported { .. } | Error::InvalidArgument { .. }) => Ok(None),
        Ok(_) => Err(instance.contract_violation("has memory of a type that UMF does not define")),
        Err(error) => Err(error),
    }
}

const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Returns the file to load, links followed.
///
/// The path is absolute; the file belongs to root or to the effective user; neither the file nor a
/// directory above it may be written by everybody. In a sticky directory only its owner can replace
/// a file.
fn check_file(path: &Path) -> Result<PathBuf, PluginError> {
    if !path.is_absolute() {
        return Err(PluginError::RelativePath { path: path.to_owned() });
    }
    let file_error = |source| PluginError::File { path: path.to_owned(), source };
    let file = path.canonicalize().map_err(file_error)?;
    let metadata = file.metadata().map_err(file_error)?;
    if !metadata.is_file() {
        return Err(PluginError::NotAFile { path: file });
    }
    let user = umf_os::process::effective_uid();
    let owner = metadata.uid();
    if owner != 0 && owner != user {
        return Err(PluginError::ForeignOwner { path: file, owner, user });
    }
    let open = |path: &Path, mode: u32| PluginError::WritableByAll {
        plugin: file.clone(),
        path: path.to_owned(),
        mode: mode & 0o7777,
    };
    if metadata.mode() & WRITABLE_BY_ALL != 0 {
        return Err(open(&file, metadata.mode()));
    }
    for directory in file.ancestors().skip(1) {
        let mode = directory.metadata().map_err(file_error)?.mode();
        if mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0 {
            return Err(open(directory, mode));
        }
    }
    Ok(file)
}
