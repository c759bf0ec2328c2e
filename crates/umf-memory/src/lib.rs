//! What providers share whose memory is mapped into this process.
//!
//! | what | where |
//! |---|---|
//! | a mapping that is unmapped when dropped, at whatever alignment | [`Mapping`] |
//! | a descriptor that is compared with its file before each use | [`CheckedFile`] |
//! | which part of a file an import asks for, checked | [`Part`] |
//! | whether a descriptor is a dma-buf | [`is_dma_buf`] |
//! | whether there is that much memory, before anybody is asked for it | [`Room`] |
//! | the memory limit of control groups | [`group`] |
//!
//! Nothing in here uses the global allocator but [`CheckedFile`], [`Room::find`], [`is_dma_buf`]
//! and [`group`]: a pool may be it.

mod checked_file;
mod dma_buf;
pub mod group;
mod mapping;
mod part;
mod room;
mod sys;

pub use checked_file::CheckedFile;
pub use dma_buf::is_dma_buf;
pub use mapping::{Mapping, Place, map_error};
pub use part::Part;
pub use room::Room;
pub use sys::page_size;
