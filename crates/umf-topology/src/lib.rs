//! NUMA nodes, their memory and its performance; and sets of nodes for memory placement.
//!
//! ```no_run
//! use umf_topology::{Initiator, Topology};
//!
//! let topology = Topology::of_this_machine()?;
//! for node in topology.nodes() {
//!     println!("node {}: {} bytes, cpus {}", node.id, node.memory.total, node.cpus);
//! }
//! // Among nodes with 1 GiB of free memory, seen from the processors that this process may run on.
//! let candidates = topology.all().filter(|node| node.memory.free >= 1 << 30);
//! let near = topology.best(&candidates, umf_topology::Attribute::Latency, Initiator::Process)?;
//! println!("{}: {}", near.space, near.basis);
//! # Ok::<(), umf_topology::Error>(())
//! ```
//!
//! | what | where |
//! |---|---|
//! | nodes, distances, performance (HMAT), huge pages, tiers | [`Topology`], [`Node`] |
//! | ordered sets of nodes that have memory | [`MemorySpace`] |
//! | the fastest, largest or nearest nodes, seen from a processor | [`Topology::best`], [`Attribute`], [`Initiator`] |
//! | the names of spaces in settings | [`SpaceName`] |
//! | the topology of a machine as text | [`Recording`] |
//!
//! A [`Topology`] is a snapshot, read from sysfs and `/proc/self/status`; later hotplug or cpuset
//! changes need a new one. This crate neither allocates nor binds memory; providers do. Files are
//! validated: content that the kernel would not write is an [`Error`] that names the file.

mod error;
mod ids;
mod name;
mod node;
mod rank;
mod read;
mod source;
mod space;
mod topology;

pub use error::{Error, Result};
pub use ids::{IdList, ParseIdListError};
pub use name::{ParseSpaceNameError, SpaceName};
pub use node::{AccessClass, HugePool, Memory, Node, Performance, SideCache};
pub use rank::{Attribute, Basis, Choice, Initiator};
pub use source::{Recording, Source};
pub use space::MemorySpace;
pub use topology::{Tier, Topology};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
