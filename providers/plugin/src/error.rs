//! [`PluginError`]: why a plugin is not loaded.

use std::path::PathBuf;

/// What is wrong with a plugin's table of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The exported function returned NULL.
    #[error("it returns no table (NULL); the plugin may have been built without this provider")]
    Null,
    /// The table does not lie at a multiple of 8.
    #[error("it returns a table that is not aligned to 8 bytes, which no table of functions is")]
    Misaligned,
    /// A version that is not known here.
    #[error("its table has version {major}.{minor}; versions 1.0, 1.1 and 1.2 can be used here")]
    Version {
        /// The upper 16 bits of the version.
        major: u16,
        /// The lower 16 bits of the version.
        minor: u16,
    },
    /// A member that every provider has is NULL.
    #[error("its table has no {operation}, which every provider must have")]
    Missing {
        /// The member.
        operation: &'static str,
    },
    /// Some members of a group are NULL and others are not.
    #[error("its table has only some of {operations}; set all of them or none")]
    Incomplete {
        /// The members of the group.
        operations: &'static str,
    },
}

/// Why a plugin is not loaded. After an error nothing of it is left in the process, except what its
/// own initialisers did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The path is not absolute.
    #[error("plugin {path:?}: not an absolute path; a plugin is named by its whole path")]
    RelativePath {
        /// The path given.
        path: PathBuf,
    },
    /// The file is not there or cannot be looked at.
    #[error("plugin {path:?}: {source}")]
    File {
        /// The path given.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A directory, a device, a pipe.
    #[error("plugin {path:?}: not a file")]
    NotAFile {
        /// The path given.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error(
        "plugin {path:?}: owned by user {owner}; a plugin is code that runs here, so it must belong to root or to \
         user {user}, as whom this process runs (chown it, or copy it)"
    )]
    ForeignOwner {
        /// The file, links followed.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// Everybody can change the file, or put another in its place.
    #[error(
        "plugin {plugin:?}: everybody may write to {path:?} (mode {mode:o}), so anybody could choose the code that runs \
         here; chmod o-w it"
    )]
    WritableByAll {
        /// The path of the plugin, links followed.
        plugin: PathBuf,
        /// The file or the directory above it that is writable.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The dynamic linker refused the file.
    #[error("plugin {path:?} cannot be loaded: {source}; is it a shared object for this machine?")]
    NotASharedObject {
        /// The file, links followed.
        path: PathBuf,
        /// What the dynamic linker says.
        source: libloading::Error,
    },
    /// The plugin does not export the symbol.
    #[error(
        "plugin {path:?} exports no function {symbol}: {source}; set `symbol` to the one that returns its table of \
         provider operations"
    )]
    NoSymbol {
        /// The file, links followed.
        path: PathBuf,
        /// The symbol looked for.
        symbol: String,
        /// What the dynamic linker says.
        source: libloading::Error,
    },
    /// The table of functions is not one.
    #[error("plugin {path:?}, function {symbol}: {fault}")]
    Table {
        /// The file, links followed.
        path: PathBuf,
        /// The symbol.
        symbol: String,
        /// What is wrong with it.
        #[source]
        fault: TableError,
    },
    /// The parameters cannot be written as JSON.
    #[error("the params for plugin {path:?} cannot be written as JSON: {source}")]
    Params {
        /// The file, links followed.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The plugin's own code failed, or told nonsense.
    #[error("plugin {path:?} does not start: {source}")]
    Start {
        /// The file, links followed.
        path: PathBuf,
        /// What it says.
        source: umf_core::Error,
    },
}
