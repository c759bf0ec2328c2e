//! A device in software, of which drivers for tests are made: memory, streams of commands, events, and faults on demand. Nothing
//! here knows the interface that it is shown through.
//!
//! Memory of the device is a memfd. The application gets addresses at which nothing can be accessed; the threads that execute
//! commands reach the same pages through a mapping of their own. So memory that only a device may touch traps when the
//! application touches it.

mod addresses;
mod backing;
mod budget;
mod command;
mod event;
mod faults;
mod handles;
mod mapping;
mod span;
mod stream;
mod sys;
mod transfer;
mod variables;

pub use addresses::{Addresses, Range};
pub use backing::{Backing, Origin};
pub use budget::{Budget, Charge};
pub use command::{Boxes, Callback, Command, Work};
pub use event::{Event, EventSlots, now};
pub use faults::{Action, Faults};
pub use handles::Handles;
pub use mapping::Mapping;
pub use span::Span;
pub use stream::{Fence, Health, Stream, Timeout};
pub use transfer::{Server, allow_everyone, fetch_by_pid, fetch_by_socket};
pub use variables::{Variables, variable};

/// What may be done with memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing at all.
    Nothing,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Why the device did not do what it should.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what happened")]
pub enum Error {
    #[error("the device has {left} bytes left, and {wanted} are needed")]
    OutOfDeviceMemory { wanted: u64, left: u64 },
    #[error("the driver may hold {limit} fds, and holds them")]
    OutOfFds { limit: u64 },
    #[error("the device is lost")]
    Lost,
    #[error("not ready in time")]
    NotReady,
    #[error("{size} bytes at {address:#x} reach out of their allocation")]
    OutOfBounds { address: usize, size: usize },
    #[error("{size} bytes at {address:#x}: nothing is mapped there, or not for this")]
    NotMapped { address: usize, size: usize },
    #[error("fd {fd} is no memory of a device: {why}")]
    NotMemory { fd: i32, why: &'static str },
    #[error("the fd of process {pid} cannot be had: {why}")]
    NoFd { pid: i32, why: String },
    #[error("{handle:#x} is no handle of such an object")]
    NoHandle { handle: usize },
    #[error("{call}: {errno}")]
    System { call: &'static str, errno: rustix::io::Errno },
}

impl Error {
    /// For `map_err`: the call that failed.
    pub fn of(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::System { call, errno }
    }
}

/// What most of this crate returns.
pub type Result<T> = core::result::Result<T, Error>;

/// Locks, whatever became of a thread that had the lock before: what is behind these locks is whole between any two
/// statements that change it.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
