//! Which memory a machine has, where, and how fast it is; and sets of it, to place memory on.
//!
//! ```no_run
//! use umf_topology::{Initiator, Topology};
//!
//! let topology = Topology::of_this_machine()?;
//! for node in topology.nodes() {
//!     println!("node {}: {} bytes, cpus {}", node.id, node.memory.total, node.cpus);
//! }
//! // As seen from the processors that this process may run on; of nodes with room for 1 GiB.
//! let roomy = topology.all().filter(|node| node.memory.free >= 1 << 30);
//! let near = topology.best(&roomy, umf_topology::Attribute::Latency, Initiator::Process)?;
//! println!("{}: {}", near.space, near.basis);
//! # Ok::<(), umf_topology::Error>(())
//! ```
//!
//! | what | where |
//! |---|---|
//! | nodes, distances, figures of the firmware (HMAT), huge pages, tiers | [`Topology`], [`Node`] |
//! | ordered sets of nodes that have memory | [`MemorySpace`] |
//! | the fastest, the largest, the nearest, from a processor's point of view | [`Topology::best`], [`Attribute`], [`Initiator`] |
//! | spaces by name, as settings have them | [`SpaceName`] |
//! | a machine as text, to look at it elsewhere | [`Recording`] |
//!
//! All of it is read from sysfs and `/proc/self/status` once, when it is asked for: what is plugged in later, or is
//! allowed later, shows in the next [`Topology`]. Nothing here allocates memory on a node or binds anything; a provider does.
//! Files are not trusted: what does not read as the kernel writes it is an [`Error`] that names the file.

mod access;
mod error;
mod ids;
mod name;
mod node;
mod rank;
mod read;
mod recording;
mod source;
mod space;
mod topology;

pub use access::{AccessClass, Performance};
pub use error::{Error, Result};
pub use ids::{IdList, ParseIdListError};
pub use name::{ParseSpaceNameError, SpaceName};
pub use node::{HugePool, Memory, Node, SideCache};
pub use rank::{Attribute, Basis, Choice, Initiator};
pub use recording::Recording;
pub use source::Source;
pub use space::MemorySpace;
pub use topology::{Tier, Topology};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
