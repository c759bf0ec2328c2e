//! System calls of `mapping` and `room`. Each function is one call, or one call and its retry.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use umf_sync::failpoint;

use crate::mapping::Placement;

type Result<T> = core::result::Result<T, Errno>;

/// The system's page size in bytes.
#[must_use]
pub fn page_size() -> usize {
    // Not from rustix, which panics on Linux before 6.4 where there is no /proc.
    // SAFETY: sysconf reads no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Takes `size` bytes of addresses that cannot be accessed and cost no memory.
pub(crate) fn reserve_addresses(size: usize) -> Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice touches no memory that exists.
    let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), flags) }?;
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// Maps `size` bytes of `file` at `offset`, shared with everyone else who maps it.
pub(crate) fn map_file(
    place: Placement,
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    access: ProtFlags,
) -> Result<NonNull<u8>> {
    let (hint, mut flags) = place.hint();
    // Who wants pages at once makes them in the file, which can fail; a reservation outlives its pages on hugetlbfs.
    flags |= MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: as in `reserve_addresses`, or where nothing is mapped.
    let mapped = unsafe { rustix::mm::mmap(hint, size, access, flags, file, offset) }?;
    failpoint!("file.mapped");
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// Makes a shared mapping that cannot be accessed readable, or readable and writable. It is not
/// locked afterwards, and gets no pages.
///
/// # Safety
/// The range is one mapping that the caller owns.
pub(crate) unsafe fn open_unlocked(base: NonNull<u8>, size: usize, writable: bool) -> Result<()> {
    let access = if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
    // SAFETY: passed on to the caller.
    unsafe {
        rustix::mm::munlock(base.as_ptr().cast(), size)?;
        rustix::mm::mprotect(base.as_ptr().cast(), size, access)
    }
}

/// Unmaps.
///
/// # Safety
/// The range consists of mappings that the caller owns, and nobody uses them any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: passed on to the caller.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), size) };
    failpoint!("unmapped");
    unmapped
}

/// What `sysinfo(2)` says. `None` where a seccomp filter refuses it. (Not from rustix, which
/// expects that it cannot fail.)
fn system_information() -> Option<libc::sysinfo> {
    let mut info = MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY: `info` is valid for the write.
    let result = unsafe { libc::sysinfo(info.as_mut_ptr()) };
    // SAFETY: it succeeded, so that `info` was written.
    (result == 0).then(|| unsafe { info.assume_init() })
}

/// Bytes of memory, and of swap, that nobody uses. `None` where the system does not say.
pub(crate) fn free_memory() -> Option<(u64, u64)> {
    let info = system_information()?;
    let unit = u64::from(info.mem_unit);
    Some((info.freeram.saturating_mul(unit), info.freeswap.saturating_mul(unit)))
}

/// Bytes of memory and swap that there are, in use or not. `None` where the system does not say.
pub(crate) fn whole_memory() -> Option<u64> {
    let info = system_information()?;
    Some(info.totalram.saturating_add(info.totalswap).saturating_mul(u64::from(info.mem_unit)))
}

/// Whether the kernel lets processes have addresses for any amount of memory.
pub(crate) fn promises_everything() -> bool {
    read_into(c"/proc/sys/vm/overcommit_memory", &mut [0; 8]).is_ok_and(|mode| mode.starts_with(b"1"))
}

/// The beginning of a file of the kernel's, as far as there is room for it.
pub(crate) fn read_into<'b>(path: &CStr, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
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

/// The number in a file of the kernel's.
pub(crate) fn number(path: &CStr) -> Option<u64> {
    let mut buffer = [0; 32];
    str::from_utf8(read_into(path, &mut buffer).ok()?).ok()?.trim().parse().ok()
}

/// Bytes of memory that can be had without swapping, as far as the kernel can tell.
pub(crate) fn available_memory() -> Option<u64> {
    // It is the third line.
    let mut buffer = [0; 1024];
    let text = str::from_utf8(read_into(c"/proc/meminfo", &mut buffer).ok()?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
