//! What the kernel gives, owned, and what it says of this process.
//!
//! | what | where |
//! |---|---|
//! | a mapping that is unmapped when dropped, at any alignment | [`Mapping`] |
//! | a descriptor that is compared with its file before each use | [`CheckedFile`] |
//! | a descriptor that came from another process | [`ReceivedFd`] |
//! | a descriptor that forked children close | [`CloseOnFork`] |
//! | a description of this process alone, and its locks | [`ReopenedFile`], [`OfdLocks`] |
//! | shared memory in a file, and mappings of it | [`memfd`], [`SharedMapping`] |
//! | what the kernel says of a file | [`mod@file`] |
//! | the peer of a socket | [`socket`] |
//! | which part of a file an import asks for, checked | [`FileRange`] |
//! | whether a descriptor is a dma-buf | [`is_dma_buf`] |
//! | available memory, before it is populated | [`AvailableMemory`] |
//! | the memory limit of control groups | [`cgroup`] |
//! | memory for metadata | [`metadata`] |
//! | environment variables, where the process may read them | [`environment`] |
//! | ids and limits of this process | [`process`] |
//! | threads without signals | [`background`] |
//! | a clock for slow paths | [`clock`] |
//! | standard output and error without locks | [`output`] |
//! | stacks of the calling thread | [`stack`] |
//!
//! [`Mapping`], [`metadata`], [`clock`], [`output`], [`stack`] and [`environment::with_variable`]
//! do not use the global allocator: a pool may be it.

mod available_memory;
pub mod background;
pub mod cgroup;
mod checked_file;
pub mod clock;
mod close_on_fork;
mod dma_buf;
pub mod environment;
pub mod file;
mod file_range;
mod locks;
mod mapping;
pub mod memfd;
mod memory_calls;
pub mod metadata;
pub mod output;
pub mod process;
mod received;
pub mod socket;
pub mod stack;

pub use available_memory::AvailableMemory;
pub use checked_file::CheckedFile;
pub use close_on_fork::CloseOnFork;
pub use dma_buf::is_dma_buf;
pub use file::FileIdentity;
pub use file_range::FileRange;
pub use locks::{OfdLocks, ReopenedFile};
pub use mapping::{Mapping, Placement, map_error};
pub use memfd::SharedMapping;
pub use memory_calls::page_size;
pub use received::ReceivedFd;
pub use rustix::fs::SealFlags;
pub use rustix::io::Errno;

/// What a system call returns.
pub type SystemResult<T> = Result<T, Errno>;
