//! System calls of this crate.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Resource};
use umf_core::step::{Step, step};

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    pub device: u64,
    pub inode: u64,
}

pub(crate) const TMPFS_MAGIC: u64 = 0x0102_1994;

pub(crate) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(bytes)
}

pub(crate) fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Nanoseconds since the machine was booted (`CLOCK_BOOTTIME`, `clock_gettime(2)`): the same in all processes, and goes on
/// while the machine sleeps.
pub(crate) fn boot_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Whether `/proc` is of the pid namespace in which [`pid`] is counted; in another one pids name other processes.
pub(crate) fn sees_itself_in_proc() -> bool {
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(16));
    target.is_ok_and(|target| target.to_str().is_ok_and(|text| text.parse() == Ok(pid())))
}

pub(crate) fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Who is at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The user of this process, or root.
    Trusted,
    /// Somebody else.
    Other,
    /// A user whom this user namespace has no number for, as it has none for the user of this process.
    Nameless,
}

/// Whether a socket's peer is the user of this process.
///
/// # Errors
/// What `getsockopt(2)` says.
pub fn peer_of(socket: BorrowedFd<'_>) -> Result<Peer> {
    let mine = effective_uid();
    let (theirs, pid) = peer(socket)?;
    if theirs == 0 {
        return Ok(Peer::Trusted);
    }
    if theirs != mine {
        return Ok(Peer::Other);
    }
    // One number stands for all users without a mapping (`user_namespaces(7)`).
    if mine != overflow_uid() || is_every_uid_mapped() {
        return Ok(Peer::Trusted);
    }
    // The kernel compares users, not numbers: without rights over a process only its own user may send it signals.
    let may_signal = Pid::from_raw(pid).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
    Ok(if may_signal { Peer::Trusted } else { Peer::Nameless })
}

fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65534)
}

/// As in the initial user namespace.
fn is_every_uid_mapped() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// The effective uid of a socket's peer, and its pid, when it connected or listened (`SO_PEERCRED`, `unix(7)`).
///
/// Not by rustix, which has no value for the pid of a peer that this pid namespace does not see: 0.
///
/// # Errors
/// What `getsockopt(2)` says.
pub fn peer(socket: BorrowedFd<'_>) -> Result<(u32, i32)> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` is valid for a write of `length` bytes, and so is `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok((credentials.uid, credentials.pid))
    } else {
        let errno = std::io::Error::last_os_error().raw_os_error();
        Err(errno.map_or(Errno::IO, Errno::from_raw_os_error))
    }
}

/// A pidfd of a socket's peer, which its pid may not be visible for (`SO_PEERPIDFD`, Linux 6.5). Before that, of its pid.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut number: RawFd = -1;
    let mut length = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: `number` is valid for a write of `length` bytes, and so is `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    if result == 0 && number >= 0 {
        // SAFETY: the kernel made this fd for the call above.
        return Some(unsafe { OwnedFd::from_raw_fd(number) });
    }
    let (_, pid) = peer(socket).ok()?;
    pidfd_open(u32::try_from(pid).ok().filter(|&pid| pid != 0)?).ok()
}

pub(crate) fn pidfd_open(pid: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// A duplicate of fd `number` of the process behind `pidfd`, close-on-exec.
pub(crate) fn pidfd_getfd(pidfd: BorrowedFd<'_>, number: RawFd) -> Result<OwnedFd> {
    rustix::process::pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())
}

/// Whether the process behind `pidfd` has ended (its pidfd is readable then).
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut fds, Some(&at_once)) {
            Ok(count) => return count > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

pub(crate) fn open(path: &str, writable: bool) -> Result<OwnedFd> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // NONBLOCK and NOCTTY: the path is a link to whatever another process has open.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// The file at `path`, which is not opened: no driver and no file server hears of it.
pub(crate) fn open_path(path: &str) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

/// Opens what [`open_path`] found. Needs the `/proc` of this pid namespace.
pub(crate) fn reopen(found: BorrowedFd<'_>, writable: bool) -> Result<OwnedFd> {
    open(&format!("/proc/self/fd/{}", found.as_raw_fd()), writable)
}

struct Status {
    identity: FileIdentity,
    size: u64,
    is_regular: bool,
}

/// As the kernel has it: a file server (FUSE, NFS) is not asked, so that it cannot keep this process waiting.
fn status(fd: impl AsFd) -> Result<Status> {
    use rustix::fs::{AtFlags, FileType, StatxFlags};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(&fd, c"", flags, StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE) {
        Ok(found) => Ok(Status {
            identity: FileIdentity {
                device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
            },
            size: found.stx_size,
            is_regular: FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::RegularFile,
        }),
        // Linux before 4.11, or a seccomp filter that does not know it.
        Err(Errno::NOSYS) => {
            let found = rustix::fs::fstat(fd)?;
            Ok(Status {
                identity: FileIdentity { device: found.st_dev, inode: found.st_ino },
                size: found.st_size.cast_unsigned(),
                is_regular: FileType::from_raw_mode(found.st_mode) == FileType::RegularFile,
            })
        }
        Err(errno) => Err(errno),
    }
}

pub(crate) fn identity(fd: impl AsFd) -> Result<FileIdentity> {
    Ok(status(fd)?.identity)
}

pub(crate) fn size(fd: impl AsFd) -> Result<u64> {
    Ok(status(fd)?.size)
}

/// Opening a device or a pipe does something; opening a regular file does not.
pub(crate) fn is_regular(fd: impl AsFd) -> Result<bool> {
    Ok(status(fd)?.is_regular)
}

/// The device on which the kernel keeps all memfds (but huge ones), which no file of another file system can have.
/// None where this process may make no memfd.
pub(crate) fn memfd_device() -> Result<Option<u64>> {
    static DEVICE: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(Some(*device));
    }
    match memfd("umf-probe", 0) {
        Ok(probe) => {
            let device = identity(&probe)?.device;
            Ok(Some(*DEVICE.get_or_init(|| device)))
        }
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(errno),
        Err(_) => Ok(None),
    }
}

/// Fills `bytes` from a place in a file; `false` if the file has fewer.
pub(crate) fn read_at(fd: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&fd, &mut bytes[filled..], offset + filled as u64) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// The magic number of the file system that the file is on (`statfs(2)`).
pub(crate) fn filesystem(fd: impl AsFd) -> Result<u64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type.cast_unsigned())
}

pub(crate) fn seals(fd: impl AsFd) -> Result<SealFlags> {
    rustix::fs::fcntl_get_seals(fd)
}

pub(crate) fn add_seals(fd: impl AsFd, seals: SealFlags) -> Result<()> {
    rustix::fs::fcntl_add_seals(fd, seals)
}

/// A sealable, close-on-exec memfd of `size` bytes, none of them allocated.
pub(crate) fn memfd(name: &str, size: u64) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know MFD_NOEXEC_SEAL.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, size)?;
    Ok(fd)
}

/// Allocates the pages of a range of a memfd, so that touching them cannot be SIGBUS.
pub(crate) fn reserve(fd: impl AsFd, offset: u64, size: u64) -> Result<()> {
    loop {
        match rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::KEEP_SIZE, offset, size) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// The largest file that this process may make.
pub(crate) fn file_size_limit() -> u64 {
    rustix::process::getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// How many fds this process may have open.
pub(crate) fn fd_limit() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Makes a hole of a range of a file: it reads as zeros, and its pages are free.
pub(crate) fn punch(fd: impl AsFd, offset: u64, size: u64) -> Result<()> {
    use rustix::fs::FallocateFlags;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&fd, flags, offset, size))
}

/// A range of address space with nothing in it: what is written there goes nowhere, what is read is zero. Unmapped when
/// dropped, whatever was put there meanwhile.
#[derive(Debug)]
pub(crate) struct AddressRange {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the range is memory; whoever reads or writes it takes care of races.
unsafe impl Send for AddressRange {}

impl AddressRange {
    /// `size` bytes at a multiple of `size`, a power of two.
    pub(crate) fn aligned(size: usize) -> Result<Self> {
        debug_assert!(size.is_power_of_two());
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let whole =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), size * 2, protection, flags) }?;
        let before = whole.addr().next_multiple_of(size) - whole.addr();
        let base = NonNull::new(whole.cast::<u8>().wrapping_add(before)).ok_or(Errno::NOMEM)?;
        let range = Self { base, size };
        if before > 0 {
            // SAFETY: the part of the mapping before the range, which nobody has seen.
            unsafe { rustix::mm::munmap(whole, before) }?;
        }
        // SAFETY: the part behind it.
        unsafe { rustix::mm::munmap(base.as_ptr().wrapping_add(size).cast(), size - before) }?;
        Ok(range)
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Puts a part of a file at `place` in the range, which forked children do not get.
    pub(crate) fn show(&self, place: usize, fd: impl AsFd, offset: u64, size: usize) -> Result<()> {
        assert!(place + size <= self.size, "inside of the range");
        let at = self.base.as_ptr().wrapping_add(place).cast();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is this object's own; at every moment something is mapped there.
        unsafe { rustix::mm::mmap(at, size, protection, flags, fd, offset) }?;
        // SAFETY: the range is this object's; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(at, size, Advice::LinuxDontFork) }?;
        // SAFETY: as above. (A sparse table would make a core dump of its whole size.)
        unsafe { rustix::mm::madvise(at, size, Advice::LinuxDontDump) }
    }

    /// Puts nothing there again, from `place` on.
    pub(crate) fn clear(&self, place: usize) -> Result<()> {
        assert!(place < self.size, "inside of the range");
        let at = self.base.as_ptr().wrapping_add(place).cast();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: as in `show`.
        unsafe { rustix::mm::mmap_anonymous(at, self.size - place, protection, flags) }?;
        Ok(())
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: the range is this object's own, and nothing borrowed from it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// Gives forked children zeros in place of this memory (Linux 4.14, `madvise(2)`).
///
/// # Safety
/// The range is whole pages of a private anonymous mapping.
pub(crate) unsafe fn wipe_on_fork(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: the advice changes nothing in this process.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, Advice::LinuxWipeOnFork) }
}

/// Gives the page at `address` its memory, so that writing there cannot be SIGBUS (`MADV_POPULATE_WRITE`, Linux 5.14; on
/// older ones nothing happens).
///
/// # Safety
/// `address` is the beginning of a page of a mapping that may be written.
pub(crate) unsafe fn populate(address: NonNull<u8>, size: usize) -> Result<()> {
    loop {
        // SAFETY: passed on to the caller; the contents stay.
        match unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) | Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A shared mapping of a part of a file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    size: usize,
    /// The process that has it, as [`umf_core::fork::generation`] counts; `None` if its children have it as well.
    kept_from_children: Option<u32>,
}

// SAFETY: the mapping is memory; whoever reads or writes it takes care of races.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// The first `size` bytes.
    pub(crate) fn new(fd: impl AsFd, size: usize, writable: bool) -> Result<Self> {
        Self::at(fd, 0, size, writable)
    }

    /// `size` bytes from `offset`, a multiple of the page size.
    pub(crate) fn at(fd: impl AsFd, offset: u64, size: usize, writable: bool) -> Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                size,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { base, size, kept_from_children: None };
        // SAFETY: the range is this mapping. (A sparse file would make a core dump of its whole size.)
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), size, Advice::LinuxDontDump) }?;
        Ok(mapping)
    }

    /// A forked child does not get this mapping.
    pub(crate) fn keep_from_children(&mut self) -> Result<()> {
        // SAFETY: the range is this mapping; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.size, Advice::LinuxDontFork) }?;
        self.kept_from_children = Some(umf_core::fork::generation());
        Ok(())
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Words of it, from byte `offset` on; empty if it does not have them.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let end = count.checked_mul(size_of::<AtomicU64>()).and_then(|size| offset.checked_add(size));
        if end.is_none_or(|end| end > self.size) || !offset.is_multiple_of(align_of::<AtomicU64>()) {
            return &[];
        }
        // SAFETY: the words lie in the mapping, which begins at a page and lives as long as `self`; atomics may be
        // written by others at the same time.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast().as_ptr(), count) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if self.kept_from_children.is_some_and(|process| process != umf_core::fork::generation()) {
            // Not here: what is at its address now is somebody else's.
            return;
        }
        // SAFETY: the mapping is this object's own, and nothing borrowed from it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
        step(Step::LedgerUnmapped);
    }
}

/// Whether other processes of the same user may attach to this one (`PR_GET_DUMPABLE`, `prctl(2)`).
pub(crate) fn is_dumpable() -> bool {
    matches!(rustix::process::dumpable_behavior(), Ok(rustix::process::DumpableBehavior::Dumpable) | Err(_))
}

/// `PR_SET_PTRACER` (`prctl(2)`): who may attach in spite of yama. EINVAL where there is no yama.
pub(crate) fn set_ptracer(who: crate::exporter::Ptracer) -> Result<()> {
    use rustix::process::PTracer;
    let ptracer = match who {
        crate::exporter::Ptracer::None => return Ok(()),
        crate::exporter::Ptracer::Any => PTracer::Any,
        crate::exporter::Ptracer::Process(pid) => {
            PTracer::ProcessID(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?)
        }
    };
    rustix::process::set_ptracer(ptracer)
}

/// Closes an fd that a forked child inherited and that no object of the child owns.
///
/// # Safety
/// The number is open in this process and nobody else will close or use it.
pub(crate) unsafe fn close_inherited(number: RawFd) {
    // SAFETY: passed on to the caller.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}
