//! System calls: feature tests of the kernel and the devices, and named shared memory.
//!
//! Each test undoes its effects before it returns: it closes descriptors and unmaps memory.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, SealFlags, StatVfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit};
use rustix::thread::{CapabilitySet, MembarrierCommand};

/// The result of a system call, or its error number.
pub(crate) type SysResult<T> = Result<T, Errno>;

/// `SO_PEERPIDFD` (Linux 6.5), which libc does not name.
const SO_PEERPIDFD: libc::c_int = 77;

/// `MPOL_BIND` of `set_mempolicy(2)`.
const MPOL_BIND: libc::c_int = 2;

/// A mapping that is unmapped when dropped.
struct Mapping {
    address: *mut libc::c_void,
    size: usize,
}

impl Mapping {
    fn anonymous(size: usize, flags: MapFlags) -> SysResult<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | flags,
            )
        }?;
        Ok(Mapping { address, size })
    }

    fn shared(fd: BorrowedFd<'_>, size: usize) -> SysResult<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        Ok(Mapping { address, size })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows from it. An error leaves it
        // mapped, harmlessly.
        let _ = unsafe { rustix::mm::munmap(self.address, self.size) };
    }
}

/// Returns the page size in bytes.
pub(crate) fn page_size() -> usize {
    // Not rustix's function, which panics on old kernels where /proc is not mounted.
    // SAFETY: `sysconf` reads a constant.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns the release of the running kernel.
pub(crate) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Returns the effective user id.
pub(crate) fn effective_uid() -> u32 {
    umf_os::process::effective_uid()
}

/// Returns the effective capabilities of this thread.
pub(crate) fn effective_capabilities() -> SysResult<CapabilitySet> {
    rustix::thread::capabilities(None).map(|sets| sets.effective)
}

/// Returns whether other processes of this user may inspect this one.
pub(crate) fn dumpable() -> SysResult<DumpableBehavior> {
    rustix::process::dumpable_behavior()
}

/// Raises the soft limit of open files to the hard limit.
pub(crate) fn raise_fd_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // On failure the limit stays, and an open beyond it fails.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Returns a resource limit of this process.
pub(crate) fn resource_limit(resource: Resource) -> Rlimit {
    rustix::process::getrlimit(resource)
}

/// Returns size and free space of the file system at `path`.
pub(crate) fn file_system(path: &str) -> SysResult<StatVfs> {
    rustix::fs::statvfs(path)
}

/// Checks that this process may open `path` for reading and writing. Does not open it: the first
/// opener of a DRM card becomes display master.
pub(crate) fn may_read_and_write(path: &Path) -> SysResult<()> {
    rustix::fs::accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::empty())
}

/// Creates a memfd of `size` bytes, close-on-exec, to which seals can be added.
pub(crate) fn memfd(size: usize, more: MemfdFlags) -> SysResult<OwnedFd> {
    let fd = rustix::fs::memfd_create("umf-info", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more)?;
    rustix::fs::ftruncate(&fd, size as u64)?;
    Ok(fd)
}

/// Adds `seals` to a new memfd of one page, and checks that they are set.
pub(crate) fn seal_a_memfd(seals: SealFlags) -> SysResult<()> {
    let fd = memfd(page_size(), MemfdFlags::empty())?;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    if rustix::fs::fcntl_get_seals(&fd)?.contains(seals) { Ok(()) } else { Err(Errno::NOTSUP) }
}

/// Creates a memfd with a sealed `exec` bit (Linux 6.3), and checks the seal.
pub(crate) fn memfd_noexec_seal() -> SysResult<()> {
    // F_SEAL_EXEC (0x20) has no name in rustix.
    let fd = memfd(page_size(), MemfdFlags::NOEXEC_SEAL)?;
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if seals.bits() & 0x20 != 0 { Ok(()) } else { Err(Errno::NOTSUP) }
}

/// Opens a pidfd of this process.
pub(crate) fn pidfd_of_self() -> SysResult<OwnedFd> {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
}

/// Fetches a descriptor of this process through its own pidfd, and checks that it is the same file.
pub(crate) fn fetch_own_fd() -> SysResult<()> {
    let own = memfd(page_size(), MemfdFlags::empty())?;
    let fetched = rustix::process::pidfd_getfd(pidfd_of_self()?, own.as_raw_fd(), PidfdGetfdFlags::empty())?;
    let (own, fetched) = (rustix::fs::fstat(&own)?, rustix::fs::fstat(&fetched)?);
    if (own.st_dev, own.st_ino) == (fetched.st_dev, fetched.st_ino) { Ok(()) } else { Err(Errno::BADF) }
}

/// Reads eight bytes at `address` in process `pid`.
pub(crate) fn read_remote(pid: i32, address: u64) -> SysResult<[u8; 8]> {
    let mut bytes = [0_u8; 8];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(usize::try_from(address).map_err(|_| Errno::FAULT)?),
        iov_len: bytes.len(),
    };
    // SAFETY: the local vector is `bytes`, borrowed for the call. The kernel validates the remote
    // address.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(read) {
        Ok(read) if read == bytes.len() => Ok(bytes),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(last_error()),
    }
}

/// Reads bytes of this process through `process_vm_readv`, and compares them.
pub(crate) fn read_own_memory() -> SysResult<()> {
    let bytes = *b"umf info";
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let read = read_remote(pid, bytes.as_ptr().expose_provenance() as u64)?;
    if read == bytes { Ok(()) } else { Err(Errno::IO) }
}

/// Reads the peer's pidfd of a connected pair of sockets.
pub(crate) fn peer_pidfd() -> SysResult<()> {
    let (socket, _peer) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut fd: libc::c_int = -1;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and size are live locals of the type that the option takes.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut size,
        )
    };
    if rc != 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just created this descriptor, and no other value owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Marks a page to be zeroed in forked children.
pub(crate) fn wipe_on_fork() -> SysResult<()> {
    let page = Mapping::anonymous(page_size(), MapFlags::empty())?;
    // SAFETY: `page` is a private mapping of this function, and the advice has no effect in this
    // process.
    unsafe { rustix::mm::madvise(page.address, page.size, Advice::LinuxWipeOnFork) }
}

/// Maps a memfd of one huge page and collapses it. `size` is the size of the huge page in bytes.
pub(crate) fn collapse_memfd(size: usize) -> SysResult<()> {
    let fd = memfd(size, MemfdFlags::empty())?;
    // Twice the size, so that it contains an aligned address.
    let reserved = Mapping::anonymous(size.checked_mul(2).ok_or(Errno::NOMEM)?, MapFlags::NORESERVE)?;
    let aligned = reserved.address.map_addr(|address| address.next_multiple_of(size));
    // SAFETY: `aligned..aligned + size` lies in `reserved`, a mapping of this function without
    // other users, and is unmapped with it.
    unsafe {
        rustix::mm::mmap(
            aligned,
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
            &fd,
            0,
        )?;
        aligned.cast::<u8>().write_volatile(1);
    }
    // SAFETY: `aligned` is the mapping made above; collapsing keeps its contents.
    let rc = unsafe { libc::madvise(aligned, size, libc::MADV_COLLAPSE) };
    if rc == 0 { Ok(()) } else { Err(last_error()) }
}

/// Registers this process for expedited barriers, and issues one.
pub(crate) fn private_membarrier() -> SysResult<()> {
    rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
    rustix::thread::membarrier(MembarrierCommand::PrivateExpedited)
}

/// Reserves a huge page of `size` bytes (a power of two) through a memfd, and returns it unused.
pub(crate) fn reserve_huge_page(size: usize) -> SysResult<()> {
    let encoded = MemfdFlags::from_bits_retain(size.trailing_zeros() << 26);
    let fd = memfd(size, MemfdFlags::HUGETLB | encoded)?;
    Mapping::shared(fd.as_fd(), size).map(drop)
}

/// Binds an untouched page to NUMA node `node`.
pub(crate) fn bind_to_node(node: u32) -> SysResult<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    const WORDS: usize = 16;
    let page = Mapping::anonymous(page_size(), MapFlags::empty())?;
    let mut nodes: [libc::c_ulong; WORDS] = [0; WORDS];
    let node = node as usize;
    *nodes.get_mut(node / BITS).ok_or(Errno::INVAL)? |= 1 << (node % BITS);
    // SAFETY: `page` is a mapping of this function, and `nodes` a live local of the given size. The
    // kernel takes one bit more than the mask has.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            page.address,
            page.size,
            libc::c_long::from(MPOL_BIND),
            nodes.as_ptr(),
            WORDS * BITS + 1,
            0_usize,
        )
    };
    if rc == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(number)
}

/// The longest mark in bytes.
const MARK_SIZE: usize = 256;

/// An object of named shared memory, located but not opened for access.
pub(crate) struct ShmObject {
    path: OwnedFd,
    size: u64,
}

/// A write lease on an object: no other process has it open or mapped. An open by another process
/// blocks until the lease is dropped (`F_SETLEASE`, `fcntl(2)`).
pub(crate) struct ShmLease {
    file: OwnedFd,
}

impl ShmObject {
    /// Locates the object at `path`. Returns `None` if it is not a regular file.
    pub(crate) fn open(path: &Path) -> SysResult<Option<Self>> {
        let found = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(is_regular
            .then_some(Self { path: found, size: stat.st_blocks.cast_unsigned().saturating_mul(512) }))
    }

    /// Reads the mark that its provider wrote (the attribute of [`umf::host::CreatorMark`]).
    pub(crate) fn mark(&self) -> SysResult<Option<Vec<u8>>> {
        let mut bytes = [0; MARK_SIZE];
        match rustix::fs::getxattr(self.in_proc(), umf::host::CreatorMark::ATTRIBUTE, &mut bytes) {
            Ok(length) => Ok(bytes.get(..length).map(<[u8]>::to_vec)),
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the bytes of memory that the object occupies.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    fn in_proc(&self) -> String {
        format!("/proc/self/fd/{}", self.path.as_raw_fd())
    }

    /// Takes a lease. Returns `None` if another process has the object open or mapped.
    pub(crate) fn lease(self) -> SysResult<Option<ShmLease>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = self.in_proc();
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            // Another process holds a lease: it inspects the object at the same time.
            Err(Errno::AGAIN) => return Ok(None),
            other => other?,
        };
        // An open by another process sends this signal to the lease holder. Its default action
        // would end this process.
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        // The `O_PATH` descriptor does not count as an open.
        // SAFETY: `file` is an open fd of this process; the lease ends with it.
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        if taken == 0 {
            return Ok(Some(ShmLease { file }));
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::AGAIN) => Ok(None),
            errno => Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

impl ShmLease {
    /// Unlinks the name if it still refers to the leased object.
    pub(crate) fn remove(self, path: &Path) -> SysResult<()> {
        let leased = rustix::fs::fstat(self.file.as_fd())?;
        let named = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
        if (leased.st_dev, leased.st_ino) != (named.st_dev, named.st_ino) {
            // The name was unlinked and created again meanwhile.
            return Err(Errno::STALE);
        }
        rustix::fs::unlink(path)
    }
}
