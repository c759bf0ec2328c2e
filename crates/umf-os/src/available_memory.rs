//! [`AvailableMemory`]: checks that memory is available before its pages are populated.

use umf_core::{Error, Result};

use crate::cgroup::{self, Cgroup};
use crate::memory_calls;

/// The memory limits of this process: those of its control groups, and the machine. The default is
/// the machine alone.
///
/// Populating pages beyond the available memory triggers the OOM killer, which kills some process,
/// or one of the control group. A check before that turns the shortage into an error. It is not a
/// reservation: other processes may take the memory between the check and the population.
#[derive(Clone, Debug, Default)]
pub struct AvailableMemory {
    groups: Box<[Cgroup]>,
}

impl AvailableMemory {
    /// Reads the control groups of this process. A process that is moved to another group later is
    /// checked against the limits of the old one.
    #[must_use]
    pub fn find() -> Self {
        // If /proc cannot be read, limits cannot be checked.
        Self { groups: cgroup::hierarchy().unwrap_or_default().into_boxed_slice() }
    }

    /// Checks that `size` bytes do not exceed all memory and swap of this machine, in use or not.
    /// The kernel checks this for private memory, but not for memory files, of which it counts
    /// touched pages only. Succeeds if the kernel always overcommits (`vm.overcommit_memory` is 1).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if they do.
    pub fn check_machine(size: usize) -> Result<()> {
        if memory_calls::whole_memory().is_none_or(|whole| size as u64 <= whole)
            || memory_calls::always_overcommits()
        {
            return Ok(());
        }
        Err(Error::OutOfMemory { size, owner: "this machine, all of it and its swap", native: 0 })
    }

    /// Checks that `size` bytes are available to `owner`, a provider.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a remedy, if they are not.
    pub fn check(&self, size: usize, owner: &'static str) -> Result<()> {
        let wanted = size as u64;
        // Where neither is known, swap may hold any amount.
        let (free, swap) = memory_calls::free_memory().unwrap_or((0, u64::MAX));
        if wanted > free
            && memory_calls::available_memory()
                .is_some_and(|available| wanted > available.saturating_add(swap))
        {
            return Err(Error::OutOfMemory { size, owner, native: 0 });
        }
        let available = self.groups.iter().filter_map(Cgroup::available).min();
        if available.is_some_and(|available| wanted > available.saturating_add(swap)) {
            return Err(Error::OutOfMemory {
                size,
                owner: "this process's control group: raise its memory.max (the memory limit of the container or job)",
                native: 0,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_beyond_any_machine_is_out_of_memory() {
        let memory = AvailableMemory::find();
        assert_eq!(memory.check(1, "a provider"), Ok(()));
        let refused = memory.check(1 << 60, "a provider");
        assert_eq!(refused, Err(Error::OutOfMemory { size: 1 << 60, owner: "a provider", native: 0 }));
        assert_eq!(AvailableMemory::check_machine(1 << 20), Ok(()));
        assert_eq!(AvailableMemory::check_machine(1 << 60).is_err(), !memory_calls::always_overcommits());
    }
}
