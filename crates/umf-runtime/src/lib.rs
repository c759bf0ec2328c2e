//! What pools and exporters share at run time.
//!
//! | part | here |
//! |---|---|
//! | regions from a provider, entered in the tracker | [`Upstream`] |
//! | tracker: from an address to its region and pool | [`tracker::find`] |
//! | observers that are called before exported memory goes | [`observer`] |
//! | deferred free: memory that other processes or a device still use | [`held`] |
//! | mistakes in the use of a pool | [`checked`] |
//! | live objects of one kind, for hooks that visit them | [`registry`] |
//! | epochs: readers without locks | [`visits`] |
//! | limits of one pool, or shared | [`limit`] |
//! | what `libumf_proxy.so` and `libumf.so.1` know of each other | [`preloaded_heap`] |
//! | tables and rings outside of the global allocator | [`metadata`] |

pub mod checked;
pub mod held;
pub mod limit;
pub mod metadata;
pub mod observer;
pub mod preloaded_heap;
pub mod registry;
mod shortage;
pub mod tracker;
mod visits;

pub use tracker::Upstream;
