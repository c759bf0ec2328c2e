//! Memory on the nodes of a memory space.
//!
//! ```
//! use umf::memory_space::{self, Policy};
//! use umf::topology::{Initiator, Topology};
//!
//! # fn main() -> umf::Result<()> {
//! let topology = Topology::of_this_machine()?;
//! let near = topology.lowest_latency(Initiator::Process)?;
//! let provider = memory_space::provider(&near.space, &Policy::Bind)?;
//! let pool = umf::Pool::builder().provider(provider).build()?;
//! let block = pool.allocate(4096)?;
//! # drop(block);
//! # Ok(())
//! # }
//! ```
//!
//! With shared memory, huge pages and so on, the builder of the host provider takes the placement:
//! `HostProvider::builder().visibility(Visibility::Shared).numa(policy.on(&space)?)`. In `umf.toml` the same is said with
//! `numa = "bind"` and `numa_space = ["lowest-latency"]`.

mod policy;
mod weights;

use std::sync::Arc;

pub use policy::Policy;
use umf_provider_host::HostProvider;
#[doc(inline)]
pub use umf_topology::{Attribute, Choice, Initiator, MemorySpace, SpaceName};
pub use weights::Weights;

use crate::Result;

/// A provider of private memory on the nodes of a space.
///
/// # Errors
/// As [`Policy::on`]; [`crate::Error::Memory`] if a node went away meanwhile, or is not this process's to use.
pub fn provider(space: &MemorySpace, policy: &Policy) -> Result<Arc<HostProvider>> {
    Ok(HostProvider::builder().name(space.to_string()).numa(policy.on(space)?).build()?)
}
