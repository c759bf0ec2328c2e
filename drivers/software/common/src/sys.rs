//! System calls of this crate. All mappings of memory are made here.

use core::ptr::{self, NonNull};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags};

type Result<T> = core::result::Result<T, Errno>;

/// Returns the system's page size in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: `sysconf` takes a number and accesses no memory of the caller.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns whether the calling thread is the first one of its process.
pub fn is_main_thread() -> bool {
    // SAFETY: the calls have no arguments.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Creates a memfd of this size, sealed against resizing.
pub(crate) fn sealed_memfd(name: &str, size: u64) -> Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    retry_on_intr(|| rustix::fs::ftruncate(&file, size))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Duplicates an fd by its number. `EBADF` if it is not open.
pub(crate) fn duplicate_number(fd: i32) -> Result<OwnedFd> {
    // SAFETY: the kernel checks the number.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::BADF));
    }
    // SAFETY: the fd is new, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// The kind of memory behind an fd.
pub(crate) enum Kind {
    /// A memfd sealed against shrinking.
    Sealed,
    DmaBuf,
    Other,
}

const DMA_BUF_MAGIC: i64 = 0x444d_4142;

/// Returns the kind of memory behind an fd, and its size in bytes.
pub(crate) fn kind_and_size(file: BorrowedFd<'_>) -> Result<(Kind, u64)> {
    let system = rustix::fs::fstatfs(file)?;
    if system.f_type == DMA_BUF_MAGIC {
        return Ok((Kind::DmaBuf, rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?));
    }
    let kind = match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => Kind::Sealed,
        // Not sealed against shrinking, or neither a memfd nor a dma-buf.
        _ => Kind::Other,
    };
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    Ok((kind, size))
}

/// Returns the name of a memfd, from `/proc`.
pub(crate) fn memfd_name(file: BorrowedFd<'_>) -> Option<String> {
    let link = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let target = rustix::fs::readlink(link, Vec::new()).ok()?.into_string().ok()?;
    Some(target.strip_prefix("/memfd:")?.trim_end_matches(" (deleted)").to_owned())
}

/// Reserves addresses without access, anywhere or at `wanted`. `EEXIST` if `wanted` is not free.
pub(crate) fn reserve(wanted: Option<usize>, size: usize) -> Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let anywhere = || {
        // SAFETY: a new mapping at addresses that the kernel chooses.
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), flags) }
    };
    let start = match wanted {
        None => anywhere()?,
        Some(address) => {
            let start = ptr::without_provenance_mut(address);
            // SAFETY: a new mapping, which replaces nothing.
            let mapped = unsafe {
                rustix::mm::mmap_anonymous(start, size, ProtFlags::empty(), flags | MapFlags::FIXED_NOREPLACE)
            };
            match mapped {
                // Kernels before 4.17 ignore the flag, and take the address as a hint.
                Ok(found) if found == start => found,
                Ok(found) => {
                    // SAFETY: mapped above, and not used.
                    unsafe { rustix::mm::munmap(found, size)? };
                    return Err(Errno::EXIST);
                }
                Err(errno) => return Err(errno),
            }
        }
    };
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

/// Maps a file shared, for reading and writing, anywhere.
pub(crate) fn map(file: BorrowedFd<'_>, size: usize) -> Result<NonNull<u8>> {
    // SAFETY: a new mapping at addresses that the kernel chooses.
    let start = unsafe {
        rustix::mm::mmap(
            ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )?
    };
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

/// Maps a file shared, for reading and writing, over the mapping at `start`.
///
/// # Safety
/// The caller owns the addresses, and nothing uses the mapping that is replaced.
pub(crate) unsafe fn replace(start: *mut u8, size: usize, file: BorrowedFd<'_>) -> Result<()> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: the caller upholds the contract.
    unsafe { rustix::mm::mmap(start.cast(), size, access, flags, file, 0) }.map(drop)
}

/// Unmaps addresses.
///
/// # Safety
/// The addresses belong to the caller, and nothing uses them.
pub(crate) unsafe fn unmap(start: *mut u8, size: usize) {
    // SAFETY: the caller upholds the contract. An error leaves the addresses reserved.
    let _ = unsafe { rustix::mm::munmap(start.cast(), size) };
}

/// Returns whether every page of a range is mapped.
pub(crate) fn is_mapped(address: usize, size: usize) -> bool {
    let page = page_size();
    let Some(end) = address.checked_add(size) else { return false };
    let mut pages = [0_u8; 4096];
    let mut at = address - address % page;
    while at < end {
        let part = (end - at).min(pages.len() * page);
        // SAFETY: the kernel checks the addresses, and writes one byte per page to the array, which
        // is large enough.
        if unsafe { libc::mincore(ptr::without_provenance_mut(at), part, pages.as_mut_ptr()) } != 0 {
            return false;
        }
        at += part;
    }
    true
}

/// Takes an fd from another process with `pidfd_open(2)` and `pidfd_getfd(2)`.
pub(crate) fn fd_of_process(pid: i32, fd: i32) -> Result<OwnedFd> {
    // The numbers are from a handle, and may have any value.
    if fd < 0 {
        return Err(Errno::BADF);
    }
    let pid = Some(pid).filter(|pid| *pid > 0).and_then(rustix::process::Pid::from_raw).ok_or(Errno::SRCH)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    rustix::process::pidfd_getfd(process.as_fd(), fd, rustix::process::PidfdGetfdFlags::empty())
}

/// Lets every process of this user take fds from this one (`PR_SET_PTRACER_ANY`). `EINVAL` if the
/// kernel does not have yama.
pub(crate) fn allow_tracing_by_all() -> Result<()> {
    // SAFETY: the prctl takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok(())
}
