//! [`PluginLoader`] and [`load`]: loading a plugin from a path, and the checks of its file.

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
use super::ipc::Format;
use super::provider::{PluginProvider, ProviderInfo};
use super::table::{Finalize, GetTable, State, Table};

/// The default name of the function that returns the table.
pub const DEFAULT_SYMBOL: &str = "umfPluginProviderOps";

/// The default kind of a plugin's memory.
pub const DEFAULT_KIND: ProviderKind = match ProviderKind::new("plugin") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// Loads the plugin at `path`, and makes a provider of the kind `kind`. Other options have the
/// defaults of [`PluginLoader`].
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

/// A builder that loads a plugin.
///
/// Loading runs the plugin's code, and relies on it to follow UMF's header. The caller vouches for
/// the file. The [crate's page](crate) has the rules that keep other users from choosing the code.
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
    /// Returns a loader of the plugin at `path`, with default options.
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

    /// Sets the function that returns the table. Default: [`DEFAULT_SYMBOL`].
    #[must_use]
    pub fn symbol(mut self, symbol: impl Into<String>) -> Self {
        self.symbol = symbol.into();
        self
    }

    /// Sets the JSON that is passed to the plugin's `initialize`. Default: none, which is NULL.
    #[must_use]
    pub fn params(mut self, params: serde_json::Value) -> Self {
        self.params = Some(params);
        self
    }

    /// Sets the kind, which is part of handles: importers find the plugin for a handle by it.
    /// Default: `plugin`. A program that loads several plugins needs a kind for each, the same in
    /// all processes.
    #[must_use]
    pub const fn kind(mut self, kind: ProviderKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the kind of memory. Default: the property `POINTER_TYPE` of a page that is allocated
    /// for this query, or host memory if the plugin has no such property.
    #[must_use]
    pub const fn memory_kind(mut self, memory_kind: MemoryKind) -> Self {
        self.memory_kind = Some(memory_kind);
        self
    }

    /// Sets whether a forked child shares the memory. Default: shared if the plugin has IPC
    /// handles or names descriptors, else private.
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
        // SAFETY: this runs the initialisers of the file. The caller asked for that, and only root
        // and this user can have written the file.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|source| PluginError::NotASharedObject { path: path.clone(), source })?;
        let table = self.table(&path, &library)?;
        self.start(library, &table, params.as_deref()).map_err(|source| PluginError::Start { path, source })
    }

    fn table(&self, path: &Path, library: &Library) -> Result<Table, PluginError> {
        // SAFETY: the caller vouches that the symbol is a function without parameters that returns
        // a table.
        let get_table = unsafe { library.get::<GetTable>(self.symbol.as_bytes()) };
        let get_table = get_table.map_err(|source| PluginError::NoSymbol {
            path: path.to_owned(),
            symbol: self.symbol.clone(),
            source,
        })?;
        // SAFETY: as above. The table that such a function returns has the length of its version.
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
        // SAFETY: the table is that of the library, and the caller vouches that it follows UMF's
        // header.
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
        let has_fds = instance.has_fds();
        let memory_kind = match self.memory_kind {
            Some(known) => known,
            None => memory_kind_of(&instance, page)?.unwrap_or(MemoryKind::Host),
        };
        let is_exported = has_fds || handle_size.is_some();
        let default = if is_exported { Visibility::Shared } else { Visibility::Private };
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
            failure_is_out_of_memory: false,
        };
        let format = if has_fds { Some(Format::Descriptors) } else { handle_size.map(Format::Handles) };
        Ok(PluginProvider::with_format(instance, about, format))
    }
}

/// A loaded and initialised plugin. Dropping it finalises and unloads the plugin.
pub(crate) struct LoadedPlugin {
    finalize: Finalize,
    state: State,
    library: ManuallyDrop<Library>,
    /// The fork generation of the initialisation.
    generation: u32,
    /// Whether a forked child neither finalises nor unloads the plugin.
    pub(crate) parent_only: bool,
}

impl Drop for LoadedPlugin {
    fn drop(&mut self) {
        if self.parent_only && self.generation != fork::generation() {
            // The memory belongs to the parent, so this process leaves the plugin loaded.
            return;
        }
        // SAFETY: the state was initialised once, and is finalised only here. The instance that
        // used it was dropped.
        let code = unsafe { (self.finalize)(self.state) };
        if code != 0 {
            tracing::warn!(code, "finalize of a plugin failed");
        }
        // SAFETY: the field is dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.library) };
    }
}

/// Serializes the parameters as a C string.
fn json(params: &serde_json::Value) -> serde_json::Result<CString> {
    // JSON escapes NUL, so the text has none.
    Ok(CString::new(serde_json::to_vec(params)?).unwrap_or_default())
}

/// `UMF_MEMORY_PROPERTY_POINTER_TYPE`.
const POINTER_TYPE: i32 = 20;

/// Queries the kind of the plugin's memory, if it has the property. The query needs an allocation.
fn memory_kind_of(instance: &Instance, page: usize) -> umf_core::Result<Option<MemoryKind>> {
    if instance.table().functions.ext_get_allocation_properties.is_none() {
        return Ok(None);
    }
    let probe = instance.allocate(page, page, false)?;
    let answer = instance.property(probe, POINTER_TYPE);
    // SAFETY: the page was allocated above, and is not in use.
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

/// Checks the file of a plugin, and returns its path with links resolved.
///
/// The path must be absolute. The file must belong to root or to the effective user. Neither the
/// file nor a directory above it may be world-writable. Sticky directories are allowed, because
/// there only the owner can replace a file.
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
    let writable = |path: &Path, mode: u32| PluginError::WritableByAll {
        plugin: file.clone(),
        path: path.to_owned(),
        mode: mode & 0o7777,
    };
    if metadata.mode() & WRITABLE_BY_ALL != 0 {
        return Err(writable(&file, metadata.mode()));
    }
    for directory in file.ancestors().skip(1) {
        let mode = directory.metadata().map_err(file_error)?.mode();
        if mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0 {
            return Err(writable(directory, mode));
        }
    }
    Ok(file)
}
