//! What the software drivers have in common: a device with memory, streams of commands and events,
//! settings and faults on demand. Nothing here knows the interface that it is shown through.

mod driver;
mod memory;
mod settings;
mod stream;
mod sys;
mod transfer;

pub use driver::{Core, Handles, Once, get, guarded, put, text};
pub use memory::{Addresses, Backing, Budget, Charge, Mapping, Origin, Range, Span};
pub use settings::{Faults, Settings, Variables, variable};
pub use stream::{Command, Event, Health, Stream, Timeout, Times, Work, now};
pub use transfer::{Server, allow_everyone, fetch_by_pid, fetch_by_socket};

/// Why the device did not do what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device has too little memory left.
    OutOfDeviceMemory,
    /// The driver holds as many fds as it may.
    OutOfFds,
    /// The device is lost.
    Lost,
    /// Not ready in time.
    NotReady,
    /// An address, a size or an fd means no memory that can be used so.
    Invalid,
    /// A handle means no object of its kind.
    NoHandle,
    /// A pointer of the application is null.
    NullPointer,
    /// The driver was not started in this process, or could not be.
    NotStarted,
    /// A fault: the answer that was asked for.
    Fault(u32),
    /// The driver panicked.
    Panicked,
    /// A system call failed.
    System(rustix::io::Errno),
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno)
    }
}

/// What most of this crate returns.
pub type Result<T> = core::result::Result<T, Error>;

/// Locks, whatever became of a thread that had the lock before: what is behind these locks is whole
/// between any two statements that change it.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
