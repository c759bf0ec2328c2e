//! [`AvailableMemory`]: checks that memory is available before its pages are populated.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use umf_core::{Error, Result};

use crate::SystemResult;
use crate::cgroup::{self, Cgroup};

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

    /// Returns the bytes of memory of this machine, in use or not, without swap. `None` if a seccomp
    /// filter forbids `sysinfo(2)`.
    #[must_use]
    pub fn whole_machine() -> Option<u64> {
        let info = system_information()?;
        Some(info.totalram.saturating_mul(u64::from(info.mem_unit)))
    }

    /// Checks that `size` bytes do not exceed all memory and swap of this machine, in use or not.
    /// The kernel checks this for private memory, but not for memory files, of which it counts
    /// touched pages only. Succeeds if the kernel always overcommits (`vm.overcommit_memory` is 1).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if they do.
    pub fn check_machine(size: usize) -> Result<()> {
        if whole_memory().is_none_or(|whole| size as u64 <= whole) || always_overcommits() {
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
        // If `sysinfo` is forbidden, swap counts as unlimited.
        let (free, swap) = free_memory().unwrap_or((0, u64::MAX));
        if wanted > free
            && available_memory().is_some_and(|available| wanted > available.saturating_add(swap))
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

/// Returns the result of `sysinfo(2)`; `None` if a seccomp filter forbids it. rustix assumes that
/// the call cannot fail.
fn system_information() -> Option<libc::sysinfo> {
    let mut info = MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY: `info` is valid for the write.
    let result = unsafe { libc::sysinfo(info.as_mut_ptr()) };
    // SAFETY: the call succeeded, so it wrote `info`.
    (result == 0).then(|| unsafe { info.assume_init() })
}

/// Returns the bytes of free memory and of free swap; `None` if `sysinfo(2)` is forbidden.
fn free_memory() -> Option<(u64, u64)> {
    let info = system_information()?;
    let unit = u64::from(info.mem_unit);
    Some((info.freeram.saturating_mul(unit), info.freeswap.saturating_mul(unit)))
}

/// Returns the bytes of memory and swap of the machine; `None` if `sysinfo(2)` is forbidden.
fn whole_memory() -> Option<u64> {
    let info = system_information()?;
    Some(info.totalram.saturating_add(info.totalswap).saturating_mul(u64::from(info.mem_unit)))
}

/// Returns whether the kernel always overcommits (`vm.overcommit_memory` is 1).
fn always_overcommits() -> bool {
    read_into(c"/proc/sys/vm/overcommit_memory", &mut [0; 8]).is_ok_and(|mode| mode.starts_with(b"1"))
}

/// Reads the beginning of a file of `/proc` or sysfs, at most the size of the buffer. Does not use
/// the global allocator.
pub(crate) fn read_into<'b>(path: &CStr, buffer: &'b mut [u8]) -> SystemResult<&'b [u8]> {
    let file = retry_on_intr(|| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))?;
    let mut length = 0;
    while length < buffer.len() {
        match retry_on_intr(|| rustix::io::read(&file, &mut buffer[length..]))? {
            0 => break,
            read => length += read,
        }
    }
    Ok(&buffer[..length])
}

/// Returns the number in a file of `/proc` or sysfs.
pub(crate) fn number(path: &CStr) -> Option<u64> {
    let mut buffer = [0; 32];
    str::from_utf8(read_into(path, &mut buffer).ok()?).ok()?.trim().parse().ok()
}

/// Returns the bytes of memory that are available without swapping, by the kernel's estimate.
fn available_memory() -> Option<u64> {
    // The field is in the third line.
    let mut buffer = [0; 1024];
    let text = str::from_utf8(read_into(c"/proc/meminfo", &mut buffer).ok()?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
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
        assert_eq!(AvailableMemory::check_machine(1 << 60).is_err(), !always_overcommits());
    }
}
