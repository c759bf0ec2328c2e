//! System calls of this crate. Each function is one call (or one call and its retry), with the kernel's types
//! kept out of the rest of the crate.

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

/// Size in bytes of a line of the first-level data cache, 64 if the system does not say.
pub(crate) fn cache_line() -> u64 {
    // SAFETY: sysconf reads no memory of ours.
    let line = unsafe { libc::sysconf(libc::_SC_LEVEL1_DCACHE_LINESIZE) };
    u64::try_from(line).ok().filter(|&line| line > 0).unwrap_or(64)
}

/// `MAP_HUGETLB` with the size bits of `huge_page` bytes; nothing for `None`.
fn hugetlb_flags(huge_page: Option<usize>) -> u32 {
    match huge_page {
        // Both MAP_ and MFD_ put the logarithm at bit 26.
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
    // SAFETY: a mapping at an address of the kernel's choice, or where nothing is mapped, touches no memory
    // that exists.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(hint, size, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    failpoint!("host.mapped");
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// What to tell the kernel about a range of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemAdvice {
    /// Use huge pages where possible.
    HugePages,
    /// Put what is there onto huge pages now (Linux 6.1).
    Collapse,
    /// Make all pages now, or fail (Linux 5.14).
    Populate,
    /// The content is not needed; private memory then reads as zero.
    DontNeed,
    /// The content may go when memory is short.
    Free,
    /// The file of a shared mapping gives its pages back; every mapping of them then reads zeros.
    Remove,
    /// Not to be written to core dumps.
    DontDump,
}

/// `madvise(2)`.
///
/// # Safety
/// The range is mapped and the caller's own; for `DontNeed`, `Free` and `Remove`, nobody needs its
/// content.
pub(crate) unsafe fn advise(base: NonNull<u8>, size: usize, advice: MemAdvice) -> Result<()> {
    /// `MADV_COLLAPSE`, which rustix has no name for.
    const COLLAPSE: c_int = 25;
    let advice = match advice {
        MemAdvice::HugePages => Advice::LinuxHugepage,
        MemAdvice::Populate => Advice::LinuxPopulateWrite,
        MemAdvice::DontNeed => Advice::LinuxDontNeed,
        MemAdvice::Free => Advice::LinuxFree,
        MemAdvice::Remove => Advice::LinuxRemove,
        MemAdvice::DontDump => Advice::LinuxDontDump,
        MemAdvice::Collapse => {
            // SAFETY: collapsing moves the content and changes none of it.
            let result = unsafe { libc::madvise(base.as_ptr().cast(), size, COLLAPSE) };
            return if result == 0 { Ok(()) } else { Err(last_error()) };
        }
    };
    // SAFETY: passed on to the caller.
    retry_on_intr(|| unsafe { rustix::mm::madvise(base.as_ptr().cast(), size, advice) })
}

/// A memfd that is closed on exec, can be sealed, and cannot be made executable where the kernel knows how.
pub(crate) fn memfd(name: &CStr, huge_page: Option<usize>) -> Result<OwnedFd> {
    /// Whether this kernel is older than 6.3 and refuses the flag.
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
        // Without the flag it works, so the flag was what was wrong.
        NO_NOEXEC_SEAL.store(true, Ordering::Relaxed);
        return Ok(made);
    }
    rustix::fs::memfd_create(name, flags)
}

/// The same file under the first free number from `first` on; where there is none, under one that is not of the standard streams, if any is
/// free.
pub(crate) fn move_above(file: OwnedFd, first: i32) -> OwnedFd {
    if first <= 0 {
        return file;
    }
    let behind_streams = || rustix::io::fcntl_dupfd_cloexec(&file, first.min(3));
    rustix::io::fcntl_dupfd_cloexec(&file, first).or_else(|_| behind_streams()).unwrap_or(file)
}

/// Sets the size of a file. The caller has compared it to [`file_size_limit`].
pub(crate) fn set_size(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    retry_on_intr(|| rustix::fs::ftruncate(file, size))
}

/// Seals that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seals {
    /// The file cannot become smaller.
    pub(crate) shrink: bool,
    /// Nobody can write, or make a writable mapping any more.
    pub(crate) write: bool,
}

/// The seals of a file; `EINVAL` if it is no file of tmpfs or hugetlbfs. Answered by the kernel alone,
/// whatever file system the file is of: safe to ask of a file that came from someone hostile.
pub(crate) fn seals(file: BorrowedFd<'_>) -> Result<Seals> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    Ok(Seals {
        shrink: seals.contains(SealFlags::SHRINK),
        write: seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE),
    })
}

/// Fixes the size of a file for ever and allows no further seals; with `read_only`, allows no further
/// writable mappings either. (Mappings that exist stay writable.)
pub(crate) fn seal(file: BorrowedFd<'_>, read_only: bool) -> Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if read_only {
        seals |= SealFlags::FUTURE_WRITE;
    }
    rustix::fs::fcntl_add_seals(file, seals)
}

/// What kind of memory file a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// memfd, or a file of tmpfs.
    Tmpfs,
    /// Huge pages of so many bytes.
    Hugetlbfs(usize),
    /// Anything else.
    Other,
}

/// As [`size_and_kind`], for a file that [`seals`] did not refuse, so that it is one or the other.
pub(crate) fn size_and_kind_with_seals(file: BorrowedFd<'_>) -> Result<(u64, FileSystem)> {
    let stat = rustix::fs::fstat(file)?;
    // A file of hugetlbfs has blocks of its huge page size: this spares a call in what an open costs.
    if u64::try_from(stat.st_blksize).is_ok_and(|block| block == page_size() as u64) {
        return Ok((u64::try_from(stat.st_size).unwrap_or(0), FileSystem::Tmpfs));
    }
    size_and_kind(file)
}

/// Size in bytes, and what the file is of. Ask [`seals`] first: this one asks the file's own file system.
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

/// Makes the pages of a range of a file now, or fails without having made the file unusable.
pub(crate) fn commit(file: BorrowedFd<'_>, offset: u64, size: usize) -> Result<()> {
    let committed = umf_os::file::reserve(file, offset, size as u64);
    failpoint!("host.committed");
    committed
}

/// Makes a named shared memory object, for this user alone; `EEXIST` if the name is taken. Closed on exec.
pub(crate) fn create_named(name: &CStr) -> Result<OwnedFd> {
    // SAFETY: `name` is a C string; the call reads nothing else.
    let fd = unsafe { libc::shm_open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: a new descriptor that nobody else owns. (shm_open sets FD_CLOEXEC.)
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The object that a name means now, opened for reading.
pub(crate) fn open_named(name: &CStr) -> Result<OwnedFd> {
    // SAFETY: as above.
    let fd = unsafe { libc::shm_open(name.as_ptr(), libc::O_RDONLY, 0) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an extended attribute.
pub(crate) fn set_attribute(fd: BorrowedFd<'_>, name: &str, value: &[u8]) -> Result<()> {
    rustix::fs::fsetxattr(fd, name, value, rustix::fs::XattrFlags::empty())
}

/// Takes a name away; the object lives on while it is open or mapped.
pub(crate) fn unlink_named(name: &CStr) -> Result<()> {
    // SAFETY: as above.
    if unsafe { libc::shm_unlink(name.as_ptr()) } == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// How memory is placed on NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumaPolicy {
    /// Only there.
    Bind,
    /// Page by page in turn.
    Interleave,
    /// So many pages in turn as the system's weights say (Linux 6.9).
    WeightedInterleave,
    /// One node, if it has memory left.
    Preferred,
    /// Any of several, if they have memory left (Linux 5.15).
    PreferredMany,
    /// The node of the processor that touches a page first.
    Local,
}

/// The kernel reads one bit less than it is told.
const MASK_BITS: c_ulong = NodeSet::LIMIT as c_ulong + 1;

/// `mbind(2)`: places the pages of a range that are not there yet.
pub(crate) fn bind(base: NonNull<u8>, size: usize, policy: NumaPolicy, nodes: &NodeSet) -> Result<()> {
    /// `MPOL_PREFERRED_MANY`, which libc has no name for.
    const PREFERRED_MANY: c_int = 5;
    /// `MPOL_WEIGHTED_INTERLEAVE`, likewise.
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
    // SAFETY: the mask has as many bits as the call is told (one less, as it wants), and the call changes
    // where pages will lie, not what is in them.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), size as c_ulong, c_long::from(mode), mask, bits, 0_u64)
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// The nodes that this process may use.
pub(crate) fn allowed_nodes() -> Result<NodeSet> {
    const MEMS_ALLOWED: c_ulong = 1 << 2;
    let mut nodes = NodeSet::EMPTY;
    let none: *mut u8 = ptr::null_mut();
    // SAFETY: the mask has room for the bits that the call is told; a null mode and address are what this
    // flag asks for.
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

/// The node on which the page at `address` lies; `None` if there is no page yet.
pub(crate) fn node_of_page(address: NonNull<u8>) -> Result<Option<u32>> {
    let pages = [address.as_ptr()];
    let mut status: [c_int; 1] = [-1];
    let no_nodes: *const c_int = ptr::null();
    // SAFETY: both arrays have the one element that the call is told of; without target nodes it moves
    // nothing.
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

/// The node of the processor that runs this thread.
pub(crate) fn current_node() -> u32 {
    let (mut cpu, mut node) = (0_u32, 0_u32);
    let no_cache: *mut u8 = ptr::null_mut();
    // SAFETY: both words are valid for the write.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, no_cache) };
    if result == 0 { node } else { 0 }
}
