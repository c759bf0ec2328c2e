//! The common part of the software drivers (testing devices): a device with memory, streams of
//! commands and events, settings, and injected faults. It is independent of CUDA and Level Zero,
//! whose interfaces the crates `cuda-soft` and `level-zero-soft` put on top.

mod driver;
mod memory;
mod settings;
mod stream;
mod sys;
mod transfer;

pub use driver::{
    DriverCell, DriverCore, HandleTable, guarded, print_line, read_argument, read_text, write_result,
};
pub use memory::{AddressMap, Backing, Budget, Charge, Mapping, MemoryOrigin, MemoryRange, Span};
pub use settings::{Faults, Settings, Variables, variable};
pub use stream::{Call, Command, Event, Health, Stream, Timeout, Times, Work, now};
pub use sys::is_main_thread;
pub use transfer::{FdServer, allow_fd_transfer, fetch_fd_by_pidfd, fetch_fd_by_socket};

/// The error of an operation. Each driver converts it to a result of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device has too little free memory.
    OutOfDeviceMemory,
    /// The driver has reached its limit of fds.
    OutOfFds,
    /// The device is lost.
    Lost,
    /// A wait timed out.
    NotReady,
    /// The command of an event does not execute: its stream was destroyed.
    Discarded,
    /// A call of a stream waits for the stream.
    OwnStream,
    /// An address, a size or an fd is invalid for the operation.
    Invalid,
    /// A handle refers to no object of its kind.
    NoHandle,
    /// A pointer of the application is null.
    NullPointer,
    /// The driver is not initialized in this process.
    NotStarted,
    /// An injected fault: the result to return.
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

/// The result of most functions of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// Locks a mutex, and ignores poisoning: the data behind the locks of this crate is consistent
/// after every statement, so that a panic cannot leave it half changed.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
