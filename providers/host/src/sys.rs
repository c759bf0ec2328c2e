//! System calls of this crate. Each function is one call, or one call and its retry. The rest of
//! the crate does not depend on the kernel's types.

use core::ffi::{CStr, c_int, c_long, c_ulong};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags};
pub(crate) use umf_os::process::file_size_limit;
use umf_os::{Placement, page_size};
use umf_sync::failpoint;

use crate::numa::NodeSet;

type Result<T> = core::result::Result<T, Errno>;

/// Returns the size in bytes of a line of the first-level data cache, or 64 if it is unknown.
pub(crate) fn cache_line() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let line = unsafe { libc::sysconf(libc::_SC_LEVEL1_DCACHE_LINESIZE) };
    u64::try_from(line).ok().filter(|&line| line > 0).unwrap_or(64)
}

/// Returns the size bits of `MAP_HUGETLB` and `MFD_HUGETLB` for pages of `huge_page` bytes, or 0.
fn hugetlb_flags(huge_page: Option<usize>) -> u32 {
    match huge_page {
        // Both flags have the logarithm at bit 26.
        Some(size) => size.trailing_zeros() << libc::MAP_HUGE_SHIFT,
        None => 0,
    }
}

/// Maps `size` bytes of zeroed private memory, on huge pages of `huge_page` bytes if given.
pub(crate) fn map_private(place: Placement, size: usize, huge_page: Option<usize>) -> Result<NonNull<u8>> {
    let (hint, mut flags) = place.hint();
    flags |= MapFlags::PRIVATE;
    if huge_page.is_some() {
        flags |= MapFlags::HUGETLB | MapFlags::from_bits_retain(hugetlb_flags(huge_page));
    }
    // SAFETY: the kernel chooses the address, or the flags exclude addresses that are mapped. No
    // existing mapping changes.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(hint, size, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    failpoint!("host.mapped");
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// Advice to the kernel about a range of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemAdvice {
    /// Use huge pages where possible.
    HugePages,
    /// Collapse the range into huge pages now (Linux 6.1).
    Collapse,
    /// Populate all pages, or fail (Linux 5.14).
    Populate,
    /// Release the pages now; private memory then reads as zero.
    DontNeed,
    /// Release the pages when memory is short.
    Free,
    /// Punch the range out of the file of a shared mapping; every mapping of it then reads as zero.
    Remove,
    /// Exclude the range from core dumps.
    DontDump,
}

/// `madvise(2)`.
///
/// # Safety
/// The caller owns the range, and it is mapped. For `DontNeed`, `Free` and `Remove` its content is
/// not needed.
pub(crate) unsafe fn advise(base: NonNull<u8>, size: usize, advice: MemAdvice) -> Result<()> {
    /// `MADV_COLLAPSE`, which rustix does not define.
    const COLLAPSE: c_int = 25;
    let advice = match advice {
        MemAdvice::HugePages => Advice::LinuxHugepage,
        MemAdvice::Populate => Advice::LinuxPopulateWrite,
        MemAdvice::DontNeed => Advice::LinuxDontNeed,
        MemAdvice::Free => Advice::LinuxFree,
        MemAdvice::Remove => Advice::LinuxRemove,
        MemAdvice::DontDump => Advice::LinuxDontDump,
        MemAdvice::Collapse => {
            // SAFETY: collapsing does not change the content of the range.
            let result = unsafe { libc::madvise(base.as_ptr().cast(), size, COLLAPSE) };
            return if result == 0 { Ok(()) } else { Err(last_error()) };
        }
    };
    // SAFETY: the caller's contract.
    retry_on_intr(|| unsafe { rustix::mm::madvise(base.as_ptr().cast(), size, advice) })
}

/// Creates a memfd that is closed on exec, can be sealed, and cannot be made executable if the
/// kernel supports that.
pub(crate) fn memfd(name: &CStr, huge_page: Option<usize>) -> Result<OwnedFd> {
    /// Whether this kernel is older than 6.3 and rejects the flag.
    static NO_NOEXEC_SEAL: AtomicBool = AtomicBool::new(false);
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if huge_page.is_some() {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(hugetlb_flags(huge_page));
    }
    if !NO_NOEXEC_SEAL.load(Ordering::Relaxed) {
        match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => {}
            other => return other,
        }
        let made = rustix::fs::memfd_create(name, flags)?;
        // The call succeeds without the flag, so the flag was the reason for EINVAL.
        NO_NOEXEC_SEAL.store(true, Ordering::Relaxed);
        return Ok(made);
    }
    rustix::fs::memfd_create(name, flags)
}

/// Moves an fd to the lowest free number of at least `lowest`. If there is none, moves it above the
/// standard streams, if possible.
pub(crate) fn move_above(file: OwnedFd, lowest: i32) -> OwnedFd {
    if lowest <= 0 {
        return file;
    }
    let above_streams = || rustix::io::fcntl_dupfd_cloexec(&file, lowest.min(3));
    rustix::io::fcntl_dupfd_cloexec(&file, lowest).or_else(|_| above_streams()).unwrap_or(file)
}

/// Sets the size of a file. The caller has compared it to [`file_size_limit`].
pub(crate) fn set_size(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    retry_on_intr(|| rustix::fs::ftruncate(file, size))
}

/// The seals that this crate depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seals {
    /// The file cannot become smaller.
    pub(crate) shrink: bool,
    /// The file cannot be written, and cannot be mapped writable.
    pub(crate) write: bool,
}

/// Returns the seals of a file, or `EINVAL` if it is not a file of tmpfs or hugetlbfs. The call
/// does not enter the file's file system, so it is safe for a file from an untrusted process.
pub(crate) fn seals(file: BorrowedFd<'_>) -> Result<Seals> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    Ok(Seals {
        shrink: seals.contains(SealFlags::SHRINK),
        write: seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE),
    })
}

/// Seals the size of a file permanently, and excludes further seals. With `read_only`, also
/// excludes writes and new writable mappings; existing mappings stay writable.
pub(crate) fn seal(file: BorrowedFd<'_>, read_only: bool) -> Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if read_only {
        seals |= SealFlags::FUTURE_WRITE;
    }
    rustix::fs::fcntl_add_seals(file, seals)
}

/// The file system of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// tmpfs, or a memfd of normal pages.
    Tmpfs,
    /// hugetlbfs, or a memfd of huge pages; with the page size in bytes.
    Hugetlbfs(usize),
    /// Another file system.
    Other,
}

/// Returns what [`size_and_kind`] does, for a file with seals, which is either of tmpfs or of
/// hugetlbfs.
pub(crate) fn size_and_kind_with_seals(file: BorrowedFd<'_>) -> Result<(u64, FileSystem)> {
    let stat = rustix::fs::fstat(file)?;
    // The block size of hugetlbfs is the huge page size. This saves a system call per open.
    if u64::try_from(stat.st_blksize).is_ok_and(|block| block == page_size() as u64) {
        return Ok((u64::try_from(stat.st_size).unwrap_or(0), FileSystem::Tmpfs));
    }
    size_and_kind(file)
}

/// Returns the size in bytes and the file system. Call [`seals`] first: this call enters the file's
/// file system.
pub(crate) fn size_and_kind(file: BorrowedFd<'_>) -> Result<(u64, FileSystem)> {
    const TMPFS: u32 = 0x0102_1994;
    const HUGETLBFS: u32 = 0x9584_58f6;
    let system = rustix::fs::fstatfs(file)?;
    let stat = rustix::fs::fstat(file)?;
    // The magic numbers have 32 bits, the field has 64, and is signed on some architectures.
    let kind = match (system.f_type & 0xffff_ffff).try_into() {
        Ok(TMPFS) => FileSystem::Tmpfs,
        Ok(HUGETLBFS) => usize::try_from(system.f_bsize).map_or(FileSystem::Other, FileSystem::Hugetlbfs),
        _ => FileSystem::Other,
    };
    Ok((u64::try_from(stat.st_size).unwrap_or(0), kind))
}

/// Populates a range of a file. After a failure the file stays usable.
pub(crate) fn commit(file: BorrowedFd<'_>, offset: u64, size: usize) -> Result<()> {
    let committed = umf_os::file::reserve(file, offset, size as u64);
    failpoint!("host.committed");
    committed
}

/// Creates a named shared memory object with mode 0600, or fails with `EEXIST`. Closed on exec.
pub(crate) fn create_named(name: &CStr) -> Result<OwnedFd> {
    // SAFETY: `name` is a C string; the call reads nothing else.
    let fd = unsafe { libc::shm_open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the fd is new, and no other code owns it. shm_open sets FD_CLOEXEC.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens the current object of a name for reading.
pub(crate) fn open_named(name: &CStr) -> Result<OwnedFd> {
    // SAFETY: `name` is a C string; the call reads nothing else.
    let fd = unsafe { libc::shm_open(name.as_ptr(), libc::O_RDONLY, 0) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the fd is new, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an extended attribute.
pub(crate) fn set_attribute(fd: BorrowedFd<'_>, name: &str, value: &[u8]) -> Result<()> {
    rustix::fs::fsetxattr(fd, name, value, rustix::fs::XattrFlags::empty())
}

/// Unlinks a name. The object exists while it is open or mapped.
pub(crate) fn unlink_named(name: &CStr) -> Result<()> {
    // SAFETY: `name` is a C string; the call reads nothing else.
    if unsafe { libc::shm_unlink(name.as_ptr()) } == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A memory policy (`set_mempolicy(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumaPolicy {
    /// On these nodes only.
    Bind,
    /// Interleaved page by page.
    Interleave,
    /// Interleaved by the system's weights (Linux 6.9).
    WeightedInterleave,
    /// On one node, if it has free memory.
    Preferred,
    /// On any of several nodes, if they have free memory (Linux 5.15).
    PreferredMany,
    /// On the node of the processor that first touches a page.
    Local,
}

/// The kernel reads one bit less than `maxnode`.
const MASK_BITS: c_ulong = NodeSet::LIMIT as c_ulong + 1;

/// `mbind(2)`: sets the policy of a range, for pages that are populated later.
pub(crate) fn bind(base: NonNull<u8>, size: usize, policy: NumaPolicy, nodes: &NodeSet) -> Result<()> {
    /// `MPOL_PREFERRED_MANY`, which libc does not define.
    const PREFERRED_MANY: c_int = 5;
    /// `MPOL_WEIGHTED_INTERLEAVE`, which libc does not define.
    const WEIGHTED_INTERLEAVE: c_int = 6;
    let mode = match policy {
        NumaPolicy::Bind => libc::MPOL_BIND,
        NumaPolicy::Interleave => libc::MPOL_INTERLEAVE,
        NumaPolicy::WeightedInterleave => WEIGHTED_INTERLEAVE,
        NumaPolicy::Preferred => libc::MPOL_PREFERRED,
        NumaPolicy::PreferredMany => PREFERRED_MANY,
        NumaPolicy::Local => libc::MPOL_LOCAL,
    };
    let (mask, bits) =
        if policy == NumaPolicy::Local { (ptr::null(), 0) } else { (nodes.words().as_ptr(), MASK_BITS) };
    // SAFETY: the kernel reads `bits - 1` bits, which the mask has. The call does not change the
    // content of pages.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), size as c_ulong, c_long::from(mode), mask, bits, 0_u64)
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Returns the nodes that this process may use.
pub(crate) fn allowed_nodes() -> Result<NodeSet> {
    const MEMS_ALLOWED: c_ulong = 1 << 2;
    let mut nodes = NodeSet::EMPTY;
    let none: *mut u8 = ptr::null_mut();
    // SAFETY: the mask has `NodeSet::LIMIT` bits. With this flag, mode and address must be null.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            none,
            nodes.words_mut().as_mut_ptr(),
            NodeSet::LIMIT as c_ulong,
            none,
            MEMS_ALLOWED,
        )
    };
    if result == 0 { Ok(nodes) } else { Err(last_error()) }
}

/// Returns the node of the page at `address`, or `None` if it is not populated.
pub(crate) fn node_of_page(address: NonNull<u8>) -> Result<Option<u32>> {
    let pages = [address.as_ptr()];
    let mut status: [c_int; 1] = [-1];
    let no_nodes: *const c_int = ptr::null();
    // SAFETY: both arrays have one element. Without target nodes the call moves no pages.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0_u64,
            1_u64,
            pages.as_ptr(),
            no_nodes,
            status.as_mut_ptr(),
            0_u64,
        )
    };
    if result < 0 {
        return Err(last_error());
    }
    Ok(u32::try_from(status[0]).ok())
}

/// Returns the node of the processor that runs this thread.
pub(crate) fn current_node() -> u32 {
    let (mut cpu, mut node) = (0_u32, 0_u32);
    let no_cache: *mut u8 = ptr::null_mut();
    // SAFETY: both pointers are valid for writes.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, no_cache) };
    if result == 0 { node } else { 0 }
}
