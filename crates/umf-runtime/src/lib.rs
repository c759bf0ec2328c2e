//! The shared state of all pools and exporters of a process.
//!
//! | part | module |
//! |---|---|
//! | upstream: tracked regions of a provider, for a pool | [`Upstream`] |
//! | tracker: the map from an address to its region and pool | [`tracker`] |
//! | observers: called before exported memory is freed | [`observer`] |
//! | deferred free: freed memory that other processes or a device still use | [`deferred`] |
//! | limits of one pool, or shared | [`limit`] |
//! | checked pools: detection of leaks, double frees and writes after the free | [`checked`] |
//! | registry: the live pools of one kind, for hooks | [`registry`] |
//! | epochs: reclamation for readers without locks | `epoch` |
//! | the interface between `libumf_proxy.so` and `libumf.so.1` | [`preloaded_heap`] |
//! | memory for metadata, outside of the global allocator | [`metadata`] |

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
