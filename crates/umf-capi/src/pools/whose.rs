//! [`Whose`]: what this library knows of the memory of a pool whose allocator checks nothing.

use umf_core::tracker::{self, OwnerId};
use umf_core::{Address, Visibility};
use umf_sync::fork;

use crate::boundary::{Failure, NOT_SUPPORTED, Outcome};
use crate::provider::{Provider, Tracking};

/// Whose memory a pool's blocks lie in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whose {
    /// `None` where the program brought the provider, and has its pool not tracked.
    owner: Option<OwnerId>,
    is_shared: bool,
    /// The process that made the pool, as [`fork::generation`] counts.
    generation: u32,
}

impl Whose {
    /// What is allocated of this provider, for an allocator that writes into memory itself.
    ///
    /// # Errors
    /// The memory is known not to be for that: of a device, or protected.
    pub(super) fn of(provider: &Provider) -> Outcome<Self> {
        let base = Tracking::of(provider).map_or(Ok(provider), Tracking::base)?;
        if base.is_out_of_reach() {
            return Err(Failure::unsupported(
                "this pool keeps its records in the memory, which the processor cannot reach; use a disjoint or proxy pool",
            ));
        }
        let is_shared = base.core().visibility() == Visibility::Shared;
        Ok(Self { owner: provider.owner(), is_shared, generation: fork::generation() })
    }

    /// Whether this is a forked child, and the memory its parent's, too: two allocators in one heap would be its end.
    pub(super) fn is_frozen(&self) -> bool {
        self.is_shared && self.generation != fork::generation()
    }

    /// Refuses what must not be done in a forked child.
    pub(super) fn check_not_frozen(&self) -> Outcome<()> {
        if !self.is_frozen() {
            return Ok(());
        }
        Err(Failure::new(
            NOT_SUPPORTED,
            "the pool's memory is shared with the parent that this process was forked from",
        ))
    }

    /// Refuses what is no memory of the pool.
    pub(super) fn check(&self, block: *const core::ffi::c_void) -> Outcome<()> {
        self.check_not_frozen()?;
        let Some(owner) = self.owner else { return Ok(()) };
        match tracker::find(Address::from_ptr(block.cast::<u8>())) {
            Some(found) if found.owner == owner => Ok(()),
            _ => Err(Failure::argument("the block is not one of this pool")),
        }
    }
}
