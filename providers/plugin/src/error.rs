//! [`PluginError`]: the reasons why a plugin cannot be loaded.

use std::path::PathBuf;

/// The reason why a table of functions is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The exported function returned NULL.
    #[error("it returns no table (NULL); check that the plugin was built with this provider")]
    Null,
    /// The table is not aligned to 8 bytes.
    #[error("it returns a table that is not aligned to 8 bytes; check that it returns a table of functions")]
    Misaligned,
    /// The version of the table is not supported.
    #[error("its table has version {major}.{minor}; versions 1.0, 1.1 and 1.2 are supported")]
    Version {
        /// The upper 16 bits of the version.
        major: u16,
        /// The lower 16 bits of the version.
        minor: u16,
    },
    /// A mandatory member is NULL.
    #[error("its table has no {operation}, which is mandatory")]
    Missing {
        /// The member.
        operation: &'static str,
    },
    /// Some members of a group are NULL, and others are not.
    #[error("its table has only some of {operations}; set all of them or none")]
    Incomplete {
        /// The members of the group.
        operations: &'static str,
    },
}

/// The reason why a plugin cannot be loaded. After an error the plugin is unloaded; only side
/// effects of its own initialisers remain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The path is not absolute.
    #[error("cannot load plugin {path:?}: the path is not absolute; use the absolute path")]
    RelativePath {
        /// The path.
        path: PathBuf,
    },
    /// The file does not exist, or its metadata cannot be read.
    #[error("cannot load plugin {path:?}: {source}; check the path and its permissions")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The path is a directory, a device or a FIFO.
    #[error("cannot load plugin {path:?}: not a regular file; use the path of a shared object")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error(
        "cannot load plugin {path:?}: it belongs to uid {owner}; a plugin must belong to root or to uid {user} of this \
         process, because it runs with its rights; chown it, or use a copy"
    )]
    ForeignOwner {
        /// The file, with links resolved.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// The file or a directory above it is world-writable, so that any user could replace the code.
    #[error(
        "cannot load plugin {plugin:?}: {path:?} is world-writable (mode {mode:o}), so any user could choose the code that \
         runs here; chmod o-w it"
    )]
    WritableByAll {
        /// The file of the plugin, with links resolved.
        plugin: PathBuf,
        /// The file or the directory above it that is writable.
        path: PathBuf,
        /// The mode of `path`.
        mode: u32,
    },
    /// The dynamic linker rejected the file.
    #[error(
        "cannot load plugin {path:?}: {linker}; check that it is a shared object for this machine and that the libraries it \
         needs are installed",
        linker = linker_text(source)
    )]
    NotASharedObject {
        /// The file, with links resolved.
        path: PathBuf,
        /// The dynamic linker's error.
        source: libloading::Error,
    },
    /// The plugin does not export the symbol.
    #[error(
        "plugin {path:?} exports no function {symbol}: {linker}; set `symbol` to the one that returns its table of \
         provider operations",
        linker = linker_text(source)
    )]
    NoSymbol {
        /// The file, with links resolved.
        path: PathBuf,
        /// The symbol.
        symbol: String,
        /// The dynamic linker's error.
        source: libloading::Error,
    },
    /// The table of functions is invalid.
    #[error("cannot load plugin {path:?}, function {symbol}: {fault}")]
    Table {
        /// The file, with links resolved.
        path: PathBuf,
        /// The symbol.
        symbol: String,
        /// The reason.
        #[source]
        fault: TableError,
    },
    /// The parameters cannot be written as JSON.
    #[error("the params for plugin {path:?} cannot be written as JSON: {source}")]
    Params {
        /// The file, with links resolved.
        path: PathBuf,
        /// The error of the serialization.
        source: serde_json::Error,
    },
    /// The plugin's initialisation failed or returned invalid values.
    #[error("cannot initialise plugin {path:?}: {source}")]
    Start {
        /// The file, with links resolved.
        path: PathBuf,
        /// The plugin's error.
        source: umf_core::Error,
    },
}

/// Returns the text of the dynamic linker (`dlerror(3)`), which is the source of the error.
fn linker_text(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |text| text.to_string())
}
