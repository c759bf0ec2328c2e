//! Shared memory: memfds, and [`SharedMapping`]s of files.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use umf_sync::failpoint;

use crate::SystemResult as Result;
use crate::file::{self, FileIdentity, identity};

/// Creates a sealable, close-on-exec memfd of `size` bytes, without pages.
///
/// # Errors
/// Those of `memfd_create(2)` and `ftruncate(2)`.
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

/// Returns whether a file has these seals; `false` if the file cannot have seals. Does not call a
/// file server (FUSE), which could block.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn is_sealed(fd: impl AsFd, needed: SealFlags) -> Result<bool> {
    match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) => Ok(seals.contains(needed)),
        // A file system without seals.
        Err(Errno::INVAL) => Ok(false),
        // Opened with O_PATH, or closed.
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

/// Returns the identity and the size of a file, if it is on tmpfs and its size is sealed. `None`
/// for any other file: another process could truncate it, or a file server block, so that an access
/// to its mapping causes SIGBUS or hangs.
///
/// # Errors
/// Those of `fcntl(2)`, `fstatfs(2)` and `statx(2)`.
pub fn of_sealed_size(fd: impl AsFd) -> Result<Option<(FileIdentity, u64)>> {
    // The seals first: the kernel knows them without a file server (FUSE).
    if !is_sealed(&fd, SealFlags::SHRINK | SealFlags::GROW)? || file::filesystem(&fd)? != file::TMPFS_MAGIC {
        return Ok(None);
    }
    let found = file::status(&fd)?;
    Ok(Some((found.identity, found.size)))
}

/// Returns the device of all memfds without huge pages. No file of another file system has this
/// device. `None` if this process cannot create memfds.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`, and those of `statx(2)`.
pub fn device() -> Result<Option<u64>> {
    /// The device plus one. Not a `OnceLock`: a child that is forked while another thread
    /// initialises one would wait for ever.
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

/// A shared mapping of a part of a file, which is unmapped when dropped. For metadata, and for data
/// of the program ([`SharedMapping::of_data`]). Providers map regions with [`crate::Mapping`],
/// which can be aligned.
#[derive(Debug)]
pub struct SharedMapping {
    base: NonNull<u8>,
    size: usize,
    /// The process of the mapping ([`umf_sync::fork::generation`]), if forked children do not
    /// inherit it.
    excluded_since: Option<u32>,
}

// SAFETY: the mapping is memory without thread affinity.
unsafe impl Send for SharedMapping {}
// SAFETY: safe methods give access through atomics only; users of the raw pointer synchronise
// themselves.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `size` bytes.
    ///
    /// # Errors
    /// Those of `mmap(2)`, `munlock(2)` and `mprotect(2)`.
    pub fn new(fd: impl AsFd, size: usize, writable: bool) -> Result<Self> {
        Self::at(fd, 0, size, writable)
    }

    /// Maps the first `size` bytes writable, for data of the program: like other mappings, it is
    /// locked (`mlockall(2)`) and in core dumps.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn of_data(fd: impl AsFd, size: usize) -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), size, access, flags, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, size, excluded_since: None })
    }

    /// Maps `size` bytes at `offset`, a multiple of the page size. Pages are allocated on first
    /// use, and are not locked (`mlockall(2)`).
    ///
    /// # Errors
    /// As [`SharedMapping::new`].
    pub fn at(fd: impl AsFd, offset: u64, size: usize, writable: bool) -> Result<Self> {
        // Without access: after mlockall(MCL_FUTURE), the kernel populates a new mapping that can
        // be accessed, holes of the file included. SAFETY: a new mapping at an address of the
        // kernel's choice affects no existing memory.
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
        // A core dump would have the whole size of a sparse file. An error has no other effect.
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
        // SAFETY: the range is a part of this mapping. Accesses to it are atomic, and then read
        // zeros.
        let _ = unsafe { rustix::mm::madvise(start.cast(), size, Advice::LinuxRemove) };
    }

    /// Returns a pointer to the first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the size in bytes.
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
            // This forked child did not inherit the mapping, so another one may have its address.
            return;
        }
        // SAFETY: this value owns the mapping, and no borrow of it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
        failpoint!("memory.unmapped");
    }
}

/// Releases the pages of a range of a shared file, in every process that maps it (`MADV_REMOVE`).
/// The range then reads as zeros.
///
/// # Errors
/// Those of `madvise(2)`: `EPERM` if the file is sealed against writing, `EACCES` if the mapping is
/// read-only, `EINVAL` if it is locked.
///
/// # Safety
/// The range is whole pages of one mapping, which lasts during the call. No reference into it
/// relies on its contents.
pub unsafe fn release_pages(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: the caller guarantees that no contents are needed.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, Advice::LinuxRemove) }
}

/// Makes the memory read as zeros in forked children (`MADV_WIPEONFORK`, Linux 4.14, `madvise(2)`).
///
/// # Errors
/// Those of `madvise(2)`.
///
/// # Safety
/// The range is whole pages of a private anonymous mapping.
pub unsafe fn wipe_on_fork(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: the advice changes nothing in this process.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, Advice::LinuxWipeOnFork) }
}

/// Allocates the pages of a range for writing, so that writing to them cannot cause SIGBUS
/// (`MADV_POPULATE_WRITE`, Linux 5.14). Has no effect on older kernels.
///
/// # Errors
/// Those of `madvise(2)`.
///
/// # Safety
/// The range is whole pages of a writable mapping.
pub unsafe fn populate(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { populate_by(Advice::LinuxPopulateWrite, address, size) }
}

/// Allocates the pages of a range for reading, so that reading them cannot cause SIGBUS
/// (`MADV_POPULATE_READ`, Linux 5.14). Has no effect on older kernels.
///
/// # Errors
/// Those of `madvise(2)`.
///
/// # Safety
/// The range is whole pages of a readable mapping.
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
    fn seals_of_a_closed_descriptor_are_an_error_and_a_path_has_none() {
        let path = file::open_path("/proc/self/exe").unwrap();
        assert_eq!(of_sealed_size(&path), Ok(None));
        // The largest number, which no other test uses.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid for the write.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        let number = i32::try_from(limit.rlim_cur.min(1 << 20)).unwrap() - 1;
        // SAFETY: the number is closed, and is only passed to queries.
        let closed = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        assert_eq!(of_sealed_size(&*closed), Err(Errno::BADF));
        // SAFETY: the number is closed, and is only passed to queries.
        let borrowed = unsafe { BorrowedFd::borrow_raw(closed.as_raw_fd()) };
        assert_eq!(is_sealed(borrowed, SealFlags::GROW), Err(Errno::BADF));
    }

    /// Returns whether core dumps have the page at `address`: `VmFlags` has no `dd`
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
