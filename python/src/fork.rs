//! Forks: memory that forked children see is not reused by their parent.
//!
//! A forked child inherits the mappings of its parent's blocks and opened handles, and Python
//! objects that use them: the arguments of a `multiprocessing.Process`, for example, which the
//! parent drops. Memory that is live at a fork is therefore kept by the parent until the children
//! of that fork have ended or called `exec`. Handles of a block are retired at once.
//!
//! Each fork has a number. Before it, this process maps one page through an open file description
//! of its own, and locks the byte of that number. The child inherits the mapping, and the parent
//! unmaps it. The lock therefore ends with the last process of that child's tree which has neither
//! ended nor called `exec`, whatever descriptors those processes close.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use umf::OwnedBlock;
use umf_os::CloseOnFork;
use umf_os::file::{self, FileIdentity};
use umf_os::{OfdLocks, ReopenedFile, SharedMapping, SystemResult, memfd};
use umf_sync::Lock;

/// The number of the latest fork that found memory. Inherited by children.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// The number of the latest fork when no fork was in progress.
static COMPLETED: AtomicU64 = AtomicU64::new(0);
/// Number of keepers of memory in this process.
static KEEPERS: AtomicU64 = AtomicU64::new(0);
/// Memory that is live at a fork up to this number is kept as long as this process lives: the end
/// of that fork's children cannot be observed.
static UNOBSERVED: AtomicU64 = AtomicU64::new(0);
/// The file whose bytes are locked.
static FILE: Lock<Option<ForkFile>> = Lock::new(None);
/// The forks in progress, of several threads.
static IN_PROGRESS: Lock<InProgress> = Lock::new(InProgress { forks: 0, mappings: Vec::new() });
/// Mappings, and blocks of pools without deferred free, that are kept for children.
static KEPT: Lock<Vec<Kept>> = Lock::new(Vec::new());

struct InProgress {
    forks: u64,
    /// With the locks of these forks. Each child inherits all of them, which may keep memory
    /// longer.
    mappings: Vec<SharedMapping>,
}

struct ForkFile {
    fd: CloseOnFork,
    identity: FileIdentity,
}

/// A value that is kept until the forks are over.
struct Kept {
    forks: Forks,
    bytes: u64,
    _value: Box<dyn Send>,
}

/// Notes new memory, and returns the number of the latest fork whose children cannot have it.
pub(crate) fn note_keeper() -> u64 {
    KEEPERS.fetch_add(1, Ordering::SeqCst);
    COMPLETED.load(Ordering::SeqCst)
}

/// Notes that memory of this process ends, or is kept for children.
pub(crate) fn note_end() {
    KEEPERS.fetch_sub(1, Ordering::SeqCst);
}

/// The forks with numbers above `after`, up to `last`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forks {
    after: u64,
    last: u64,
}

impl Forks {
    /// Returns the forks since the one with the number `after`, if any of their children may still
    /// see the memory of this process.
    pub(crate) fn since(after: u64) -> Option<Self> {
        let forks = Self { after, last: FORKS.load(Ordering::SeqCst) };
        (forks.last != after && !forks.are_over()).then_some(forks)
    }

    /// Returns whether all children of these forks have ended or called `exec`.
    fn are_over(self) -> bool {
        if self.after < UNOBSERVED.load(Ordering::SeqCst) {
            return false;
        }
        let file = FILE.lock();
        let Some(ForkFile { fd, identity }) = &*file else { return true };
        if file::identity(fd.as_fd()) != Ok(*identity) {
            // The program has closed the descriptor.
            return false;
        }
        let range = self.after + 1..self.last + 1;
        // Without an answer the memory is kept.
        OfdLocks::of_descriptor(fd.as_fd()).is_any_write_locked(range).is_ok_and(|is_locked| !is_locked)
    }
}

impl umf::Completion for Forks {
    fn progress(&self) -> umf::Progress {
        if self.are_over() { umf::Progress::Ready } else { umf::Progress::Pending }
    }
}

/// Memory that is kept until forks are over.
pub(crate) trait KeepForChildren: Send {
    /// Keeps the memory until `forks` are over.
    fn keep(self, forks: Forks);
}

impl KeepForChildren for OwnedBlock {
    fn keep(self, forks: Forks) {
        if self.pool().provider().visibility() == umf::Visibility::Private {
            // Each child has a copy.
            return;
        }
        let bytes = self.len() as u64;
        if let Err((block, _)) = self.free_after(Arc::new(forks)) {
            keep_value(forks, bytes, block);
        }
    }
}

impl KeepForChildren for umf::link::View {
    fn keep(self, forks: Forks) {
        keep_value(forks, self.len() as u64, self);
    }
}

/// Keeps a value until `forks` are over.
pub(crate) fn keep_value(forks: Forks, bytes: u64, value: impl Send + 'static) {
    let kept = Kept { forks, bytes, _value: Box::new(value) };
    KEPT.lock().push(kept);
    release_kept();
}

/// Releases what forks are over for. Returns the bytes that are still kept. Blocks with a deferred
/// free are not among them: `umf::drain` counts those.
pub(crate) fn release_kept() -> u64 {
    let mut released = Vec::new();
    let mut kept = KEPT.lock();
    if kept.is_empty() {
        return 0;
    }
    released.extend(kept.extract_if(.., |kept| kept.forks.are_over()));
    let bytes = kept.iter().map(|kept| kept.bytes).sum();
    drop(kept);
    // Without the lock: it unmaps and frees.
    drop(released);
    bytes
}

/// Locks the byte of the next fork, and maps a page through the description that has the lock.
fn lock_next(file: &mut Option<ForkFile>, number: u64) -> SystemResult<SharedMapping> {
    let file = if let Some(file) = file {
        file
    } else {
        let fd = CloseOnFork::make(|| memfd::create("umf-forks", 4096))?;
        let identity = file::identity(fd.as_fd())?;
        file.insert(ForkFile { fd, identity })
    };
    let reopened = ReopenedFile::of(file.fd.as_fd(), file.identity)?;
    let mapping = SharedMapping::new(&reopened, 4096, false)?;
    if reopened.locks().try_write_lock(number)? { Ok(mapping) } else { Err(umf_os::Errno::AGAIN) }
}

#[pyfunction]
fn before_fork(python: Python<'_>) -> PyResult<()> {
    release_kept();
    let mut in_progress = IN_PROGRESS.lock();
    in_progress.forks += 1;
    if KEEPERS.load(Ordering::SeqCst) == 0 {
        return Ok(());
    }
    let number = FORKS.load(Ordering::SeqCst) + 1;
    let mut file = FILE.lock();
    let locked = lock_next(&mut file, number);
    if let Err(errno) = locked {
        if errno == umf_os::Errno::STALE {
            // Another file has the number of the descriptor. The next fork makes a new one.
            drop(file.take());
        }
        UNOBSERVED.store(number, Ordering::SeqCst);
    }
    drop(file);
    FORKS.store(number, Ordering::SeqCst);
    match locked {
        Ok(mapping) => {
            in_progress.mappings.push(mapping);
            Ok(())
        }
        Err(errno) => {
            drop(in_progress);
            let text = format!(
                "umf cannot observe when the children of this fork end ({errno}), so memory that is live now is \
                 never reused; raise the limit of open files (ulimit -n) and mount /proc"
            );
            let text = std::ffi::CString::new(text)?;
            PyErr::warn(python, &python.get_type::<PyRuntimeWarning>(), &text, 1)
        }
    }
}

#[pyfunction]
fn after_fork_in_parent() {
    let mut in_progress = IN_PROGRESS.lock();
    in_progress.forks = in_progress.forks.saturating_sub(1);
    let mut ended = Vec::new();
    if in_progress.forks == 0 {
        ended.append(&mut in_progress.mappings);
        COMPLETED.store(FORKS.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    drop(in_progress);
    // Without the lock: it unmaps.
    drop(ended);
}

#[pyfunction]
fn after_fork_in_child() {
    let mut in_progress = IN_PROGRESS.lock();
    in_progress.forks = 0;
    // The mappings stay as long as this process does, and their locks.
    std::mem::forget(std::mem::take(&mut in_progress.mappings));
    drop(in_progress);
    // The file is the parent's. `CloseOnFork` has closed the descriptor.
    drop(FILE.lock().take());
    UNOBSERVED.store(0, Ordering::SeqCst);
    COMPLETED.store(FORKS.load(Ordering::SeqCst), Ordering::SeqCst);
    KEEPERS.store(0, Ordering::SeqCst);
    std::mem::forget(std::mem::take(&mut *KEPT.lock()));
}

/// Registers the functions with `os.register_at_fork`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let hooks = PyDict::new(module.py());
    hooks.set_item("before", wrap_pyfunction!(before_fork, module)?)?;
    hooks.set_item("after_in_parent", wrap_pyfunction!(after_fork_in_parent, module)?)?;
    hooks.set_item("after_in_child", wrap_pyfunction!(after_fork_in_child, module)?)?;
    module.py().import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}
