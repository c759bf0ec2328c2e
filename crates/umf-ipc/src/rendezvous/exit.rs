//! Removes the names of this process when it ends by `exit(3)`: exporters in statics are not
//! dropped. The names of a killed process stay until another process finds its locks free.

use core::sync::atomic::{AtomicBool, Ordering};

use umf_os::FileIdentity;
use umf_sync::{Lock, fork};

use super::directory::{BoundFiles, Directory};

/// A name with a socket.
#[derive(Debug)]
struct BoundName {
    directory: Directory,
    name: String,
    files: BoundFiles,
    /// [`fork::generation`] of the process that bound it.
    generation: u32,
}

static NAMES: Lock<Vec<BoundName>> = Lock::new(Vec::new());

/// Adds a name that this process has bound.
pub(super) fn add(directory: &Directory, name: &str, files: BoundFiles) {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // A forked child inherits the registration.
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) && !umf_os::process::at_exit(remove_all) {
        tracing::debug!("no memory to register a function for exit: sockets in directories stay");
    }
    let generation = fork::generation();
    let bound = BoundName { directory: directory.clone(), name: name.to_owned(), files, generation };
    NAMES.lock().push(bound);
}

/// Removes a name that was dropped.
pub(super) fn forget(lock: FileIdentity) {
    NAMES.lock().retain(|bound| bound.files.lock != lock);
}

/// Removes the files of all names. Other threads may still run. This process holds the locks, so
/// that no other process can have taken the names.
extern "C" fn remove_all() {
    let Some(names) = NAMES.try_lock() else { return };
    for bound in names.iter().filter(|bound| bound.generation == fork::generation()) {
        bound.files.remove(&bound.directory, &bound.name);
    }
}
