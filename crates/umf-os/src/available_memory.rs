//! [`AvailableMemory`]: whether there is that much memory.

use umf_core::{Error, Result};

use crate::cgroup::{self, Cgroup};
use crate::memory_calls;

/// What bounds the memory of this process, to be asked before pages are made; by default the machine alone.
///
/// Who takes pages until there are none wakes the out-of-memory killer, which ends some process; within a control group one of that
/// group. A limit, or memory, that is plainly not there is an error instead. (Others may take it between the answer and the pages.)
#[derive(Clone, Debug, Default)]
pub struct AvailableMemory {
    groups: Box<[Cgroup]>,
}

impl AvailableMemory {
    /// What bounds this process now. If it is moved to another control group, the old one's limits are what is looked at.
    #[must_use]
    pub fn find() -> Self {
        // Where /proc cannot be read the kernel alone knows of limits.
        Self { groups: cgroup::hierarchy().unwrap_or_default().into_boxed_slice() }
    }

    /// Refuses `size` bytes that are more than all memory and swap of this machine, however they are used. So the kernel does with
    /// private memory by itself, and not with files of memory, of which it counts what is touched. Where it is told to refuse
    /// nothing (`vm.overcommit_memory` is 1), nothing is.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn check_machine(size: usize) -> Result<()> {
        if memory_calls::whole_memory().is_none_or(|whole| size as u64 <= whole)
            || memory_calls::promises_everything()
        {
            return Ok(());
        }
        Err(Error::OutOfMemory { size, owner: "this machine, all of it and its swap", native: 0 })
    }

    /// Refuses `size` bytes of `owner`'s memory if they cannot be had.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with what to do about it.
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
        let room = self.groups.iter().filter_map(Cgroup::available).min();
        if room.is_some_and(|room| wanted > room.saturating_add(swap)) {
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
    fn what_no_machine_has_is_refused_with_its_owner() {
        let room = AvailableMemory::find();
        assert_eq!(room.check(1, "somebody"), Ok(()));
        let refused = room.check(1 << 60, "somebody");
        assert_eq!(refused, Err(Error::OutOfMemory { size: 1 << 60, owner: "somebody", native: 0 }));
        assert_eq!(AvailableMemory::check_machine(1 << 20), Ok(()));
        assert_eq!(AvailableMemory::check_machine(1 << 60).is_err(), !memory_calls::promises_everything());
    }
}
