//! What pools and exporters share at run time.
//!
//! | part | here |
//! |---|---|
//! | regions from a provider, entered in the tracker | [`Upstream`] |
//! | tracker: from an address to its region and pool | [`tracker::find`] |
//! | observers that are called before exported memory goes | [`observer`] |
//! | deferred free: memory that other processes or a device still use | [`deferred`] |
//! | mistakes in the use of a pool | [`checked`] |
//! | live objects of one kind, for hooks that visit them | [`registry`] |
//! | epochs: readers without locks | `epoch` |
//! | limits of one pool, or shared | [`limit`] |
//! | what `libumf_proxy.so` and `libumf.so.1` know of each other | [`preloaded_heap`] |
//! | tables and rings outside of the global allocator | [`metadata`] |

pub mod checked;
pub mod deferred;
mod epoch;
pub mod limit;
pub mod metadata;
pub mod observer;
mod out_of_memory;
pub mod preloaded_heap;
pub mod registry;
pub mod tracker;

pub use tracker::Upstream;
