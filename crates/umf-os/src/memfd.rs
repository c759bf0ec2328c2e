//! Memory that is shared: memfds, and mappings of files.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use umf_sync::failpoint;

use crate::SystemResult as Result;
use crate::file::{self, FileIdentity, identity};

/// A sealable, close-on-exec memfd of `size` bytes, none of them allocated.
///
/// # Errors
/// What `memfd_create(2)` and `ftruncate(2)` say.
pub fn create(name: &str, size: u64) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know MFD_NOEXEC_SEAL.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, size)?;
    failpoint!("memory.created");
    Ok(fd)
}

/// Whether a file has these seals. No file system is asked: a FUSE mount could keep the caller
/// waiting.
///
/// # Errors
/// What `fcntl(2)` says, unless that is that the file cannot have seals.
pub fn is_sealed(fd: impl AsFd, needed: SealFlags) -> Result<bool> {
    match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) => Ok(seals.contains(needed)),
        // Of another file system.
        Err(Errno::INVAL) => Ok(false),
        // Opened with O_PATH, if it is open at all.
        Err(Errno::BADF) => rustix::io::fcntl_getfd(fd).map(|_| false),
        Err(errno) => Err(errno),
    }
}

/// Adds seals to a memfd.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn add_seals(fd: impl AsFd, seals: SealFlags) -> Result<()> {
    rustix::fs::fcntl_add_seals(fd, seals)
}

/// The identity and the size of a file, if it is memory that no process can take away: tmpfs with a
/// sealed size. Any other file could be SIGBUS or a hang when it is mapped, and is `None`.
///
/// # Errors
/// Those of `fcntl(2)`, `fstatfs(2)` and `statx(2)`.
pub fn of_sealed_size(fd: impl AsFd) -> Result<Option<(FileIdentity, u64)>> {
    // First, because the kernel answers it: a file server (FUSE) is asked nothing.
    if !is_sealed(&fd, SealFlags::SHRINK | SealFlags::GROW)? || file::filesystem(&fd)? != file::TMPFS_MAGIC {
        return Ok(None);
    }
    let found = file::status(&fd)?;
    Ok(Some((found.identity, found.size)))
}

/// The device on which the kernel keeps all memfds (but huge ones), which no file of another file
/// system can have. None where this process may make no memfd.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`, and those of `statx(2)`.
pub fn device() -> Result<Option<u64>> {
    /// The device plus one. (Not a `OnceLock`: a child forked while another thread fills that would
    /// wait for ever.)
    static DEVICE: AtomicU64 = AtomicU64::new(0);
    if let Some(device) = DEVICE.load(Ordering::Relaxed).checked_sub(1) {
        return Ok(Some(device));
    }
    match create("umf-probe", 0) {
        Ok(probe) => {
            let device = identity(&probe)?.device;
            DEVICE.store(device.wrapping_add(1), Ordering::Relaxed);
            Ok(Some(device))
        }
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(errno),
        Err(_) => Ok(None),
    }
}

/// A shared mapping of a part of a file, unmapped when dropped. For metadata, or
/// ([`SharedMapping::of_data`]) memory that the program shares. Providers map regions with
/// [`crate::Mapping`], which can be aligned.
#[derive(Debug)]
pub struct SharedMapping {
    base: NonNull<u8>,
    size: usize,
    /// [`umf_sync::fork::generation`] of the process that has the mapping, if forked children do
    /// not get it.
    excluded_since: Option<u32>,
}

// SAFETY: the mapping is memory without thread affinity.
unsafe impl Send for SharedMapping {}
// SAFETY: safe methods give access through atomics only; users of the raw pointer synchronise
// themselves.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// The first `size` bytes.
    ///
    /// # Errors
    /// Those of `mmap(2)`, `munlock(2)` and `mprotect(2)`.
    pub fn new(fd: impl AsFd, size: usize, writable: bool) -> Result<Self> {
        Self::at(fd, 0, size, writable)
    }

    /// A writable mapping of the first `size` bytes, for data of the program: its pages are
    /// allocated, locked (`mlockall(2)`) and dumped as those of other mappings.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn of_data(fd: impl AsFd, size: usize) -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), size, access, flags, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, size, excluded_since: None })
    }

    /// `size` bytes from `offset`, a multiple of the page size. Pages are allocated as they are
    /// touched, and are not locked (`mlockall(2)`).
    ///
    /// # Errors
    /// As [`SharedMapping::new`].
    pub fn at(fd: impl AsFd, offset: u64, size: usize, writable: bool) -> Result<Self> {
        // After mlockall(MCL_FUTURE) the kernel populates a new mapping, holes of the file
        // included, unless the mapping cannot be accessed. SAFETY: a new mapping at an address of
        // the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                size,
                ProtFlags::empty(),
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { base, size, excluded_since: None };
        let access = if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: the range is this mapping, which nothing uses yet.
        unsafe {
            rustix::mm::munlock(base.as_ptr().cast(), size)?;
            rustix::mm::mprotect(base.as_ptr().cast(), size, access)?;
        }
        // A sparse file would make a core dump of its whole size. That is all that comes of a
        // refusal.
        // SAFETY: the range is this mapping; the advice changes nothing in this process.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), size, Advice::LinuxDontDump) };
        failpoint!("memory.mapped");
        Ok(mapping)
    }

    /// Excludes this mapping from forked children (`MADV_DONTFORK`).
    ///
    /// # Errors
    /// Those of `madvise(2)`.
    pub fn exclude_from_fork(&mut self) -> Result<()> {
        // SAFETY: the range is this mapping; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.size, Advice::LinuxDontFork) }?;
        self.excluded_since = Some(umf_sync::fork::generation());
        Ok(())
    }

    /// Requests small pages, so that reading a hole of the file does not allocate a huge page.
    /// Kernels without huge pages of shared memory reject the advice and need none.
    pub fn use_small_pages(&mut self) {
        // SAFETY: the range is this mapping; the advice changes nothing but the size of pages.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.size, Advice::LinuxNoHugepage) };
    }

    /// Punches a hole into the file from `offset` to the end of this writable mapping
    /// (`MADV_REMOVE`, `madvise(2)`). If that fails, the contents stay.
    pub fn punch_hole(&self, offset: usize) {
        debug_assert!(offset < self.size, "inside of the mapping");
        let (start, size) = (self.base.as_ptr().wrapping_add(offset), self.size - offset);
        // SAFETY: the range is a part of this mapping, which nothing borrows; the file stays as
        // long.
        let _ = unsafe { rustix::mm::madvise(start.cast(), size, Advice::LinuxRemove) };
    }

    /// Returns a pointer to the first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns `count` words at byte `offset`; empty if they do not lie in the mapping.
    #[must_use]
    pub fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let end = count.checked_mul(size_of::<AtomicU64>()).and_then(|size| offset.checked_add(size));
        if end.is_none_or(|end| end > self.size) || !offset.is_multiple_of(align_of::<AtomicU64>()) {
            return &[];
        }
        // SAFETY: the words lie in the mapping, which begins at a page and lives as long as `self`.
        // Other processes may write atomics at the same time.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast().as_ptr(), count) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if self.excluded_since.is_some_and(|process| process != umf_sync::fork::generation()) {
            // This child does not have the mapping: another mapping may have its address.
            return;
        }
        // SAFETY: the mapping is this object's own, and nothing borrowed from it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
        failpoint!("memory.unmapped");
    }
}

/// Gives forked children zeros in place of this memory (Linux 4.14, `madvise(2)`).
///
/// # Errors
/// Those of the call.
///
/// # Safety
/// The range is whole pages of a private anonymous mapping.
pub unsafe fn wipe_on_fork(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: the advice changes nothing in this process.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, Advice::LinuxWipeOnFork) }
}

/// Gives the page at `address` its memory, so that writing there cannot be SIGBUS
/// (`MADV_POPULATE_WRITE`, Linux 5.14; on older ones nothing happens).
///
/// # Errors
/// Those of the call.
///
/// # Safety
/// `address` is the beginning of a page of a mapping that may be written.
pub unsafe fn populate(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { populate_by(Advice::LinuxPopulateWrite, address, size) }
}

/// As [`populate`], so that reading there cannot be SIGBUS (`MADV_POPULATE_READ`): a page that is
/// read, too, gets its memory.
///
/// # Errors
/// Those of the call.
///
/// # Safety
/// `address` is the beginning of a page of a mapping that may be read.
pub unsafe fn populate_for_reading(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { populate_by(Advice::LinuxPopulateRead, address, size) }
}

/// # Safety
/// As [`populate`].
unsafe fn populate_by(advice: Advice, address: NonNull<u8>, size: usize) -> Result<()> {
    loop {
        // SAFETY: passed on to the caller; the contents stay.
        match unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, advice) } {
            Err(Errno::INVAL) | Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;
    use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};

    use super::*;

    #[test]
    fn closed_descriptor_is_an_error_and_a_path_is_not_sealed() {
        let path = file::open_path("/proc/self/exe").unwrap();
        assert_eq!(of_sealed_size(&path), Ok(None));
        // The largest number: no other test opens a file under it.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid for the write.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        let number = i32::try_from(limit.rlim_cur.min(1 << 20)).unwrap() - 1;
        // SAFETY: nothing has the number, and it is only asked about.
        let closed = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        assert_eq!(of_sealed_size(&*closed), Err(Errno::BADF));
        // SAFETY: as above.
        let borrowed = unsafe { BorrowedFd::borrow_raw(closed.as_raw_fd()) };
        assert_eq!(is_sealed(borrowed, SealFlags::GROW), Err(Errno::BADF));
    }

    /// Whether core dumps have the page at `address`: `dd` of `VmFlags` says not
    /// (`proc_pid_smaps(5)`).
    fn is_dumped(address: NonNull<u8>) -> bool {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-", address.as_ptr().addr());
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&begin));
        let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
        !flags.split(' ').any(|flag| flag == "dd")
    }

    #[test]
    fn data_is_dumped_and_metadata_is_not() {
        let file = create("umf-test", 4096).unwrap();
        let (data, metadata) =
            (SharedMapping::of_data(&file, 4096).unwrap(), SharedMapping::new(&file, 4096, true).unwrap());
        assert!(is_dumped(data.base()));
        assert!(!is_dumped(metadata.base()));
    }
}
