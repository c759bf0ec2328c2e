//! System calls of `mapping` and `available_memory`. Each function is one call, or one call and its
//! retry.

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

/// Reserves `size` bytes of address space, which cannot be accessed and costs no memory.
pub(crate) fn reserve_addresses(size: usize) -> Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice touches no memory that exists.
    let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), flags) }?;
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// Maps `size` bytes of `file` at `offset`, shared (`MAP_SHARED`).
pub(crate) fn map_file(
    place: Placement,
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    access: ProtFlags,
) -> Result<NonNull<u8>> {
    let (hint, mut flags) = place.hint();
    // Without MAP_POPULATE, which ignores failures: callers allocate pages in the file instead.
    // Without a reservation, which outlives its pages on hugetlbfs.
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
/// The range consists of mappings that the caller owns and that are not in use any more.
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

/// Returns the bytes of free memory and of free swap; `None` if `sysinfo(2)` is forbidden.
pub(crate) fn free_memory() -> Option<(u64, u64)> {
    let info = system_information()?;
    let unit = u64::from(info.mem_unit);
    Some((info.freeram.saturating_mul(unit), info.freeswap.saturating_mul(unit)))
}

/// Returns the bytes of memory and swap of the machine; `None` if `sysinfo(2)` is forbidden.
pub(crate) fn whole_memory() -> Option<u64> {
    let info = system_information()?;
    Some(info.totalram.saturating_add(info.totalswap).saturating_mul(u64::from(info.mem_unit)))
}

/// Returns whether the kernel always overcommits (`vm.overcommit_memory` is 1).
pub(crate) fn always_overcommits() -> bool {
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
