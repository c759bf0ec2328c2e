//! Which files may be loaded as a plugin.
//!
//! A plugin is code that runs with the rights of this process. So nobody but root and the user of this process may
//! be able to choose what it is: the path is absolute, the file belongs to one of them, and neither the file nor
//! a directory above it may be written by everybody (a sticky directory such as `/tmp` is fine: there only the owner
//! of a file can replace it). A symbolic link is followed first, and what it leads to is what is checked and loaded.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::PluginError;

const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The file to load, if it may be.
pub(super) fn check(path: &Path) -> Result<PathBuf, PluginError> {
    if !path.is_absolute() {
        return Err(PluginError::RelativePath { path: path.to_owned() });
    }
    let unseen = |source| PluginError::File { path: path.to_owned(), source };
    let file = path.canonicalize().map_err(unseen)?;
    let metadata = file.metadata().map_err(unseen)?;
    if !metadata.is_file() {
        return Err(PluginError::NotAFile { path: file });
    }
    let user = umf_core::process::effective_uid();
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
        let mode = directory.metadata().map_err(unseen)?.mode();
        if mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0 {
            return Err(open(directory, mode));
        }
    }
    Ok(file)
}
