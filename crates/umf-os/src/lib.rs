//! Owned kernel objects (mappings, descriptors, locks, threads), and queries about files and this
//! process.
//!
//! | item | type or module |
//! |---|---|
//! | a mapping that is unmapped when dropped, at any alignment | [`Mapping`] |
//! | a descriptor that is compared with its file before each use | [`CheckedFile`] |
//! | a descriptor that another process sent | [`ReceivedFd`] |
//! | a descriptor that is closed in forked children | [`CloseOnFork`] |
//! | an open file description that is not shared, and its locks | [`ReopenedFile`], [`OfdLocks`] |
//! | memfds, and shared mappings | [`memfd`], [`SharedMapping`] |
//! | metadata and content of files | [`mod@file`] |
//! | the peer of a socket | [`socket`] |
//! | the checked range of a file that an import requests | [`FileRange`] |
//! | whether a descriptor is a dma-buf | [`is_dma_buf`] |
//! | checks that memory is available before it is populated | [`AvailableMemory`] |
//! | the memory limits of control groups | [`cgroup`] |
//! | memory for metadata | [`metadata`] |
//! | environment variables, unless the process is secure | [`environment`] |
//! | ids and limits of this process | [`process`] |
//! | background threads without signals | [`background`] |
//! | clocks | [`clock`] |
//! | standard output and error without locks | [`output`] |
//! | the stack of the calling thread | [`stack`] |
//!
//! [`Mapping`], [`metadata`], [`clock`], [`output`], [`stack`] and [`environment::with_variable`]
//! do not use the global allocator: a pool may be the global allocator.

mod available_memory;
pub mod background;
pub mod cgroup;
pub mod clock;
mod descriptor;
pub mod environment;
pub mod file;
mod locks;
mod mapping;
pub mod memfd;
pub mod output;
pub mod process;
pub mod socket;
pub mod stack;

pub use available_memory::AvailableMemory;
pub use descriptor::{CheckedFile, CloseOnFork, ReceivedFd};
pub use file::{FileIdentity, FileRange, is_dma_buf};
pub use locks::{OfdLocks, ReopenedFile};
pub use mapping::{Mapping, Placement, map_error, metadata, page_size};
pub use memfd::SharedMapping;
pub use rustix::fs::SealFlags;
pub use rustix::io::Errno;

/// The result of a system call.
pub type SystemResult<T> = Result<T, Errno>;
