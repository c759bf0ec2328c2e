//! The system calls of this program: those that probe what the kernel and the devices grant.
//!
//! Every function undoes what it did before it returns: descriptors are closed, mappings unmapped.

pub(crate) mod shm;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, MemfdFlags, SealFlags, StatVfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit};
use rustix::thread::{CapabilitySet, MembarrierCommand};

/// What a system call gave, or the error number that it ended with.
pub(crate) type Outcome<T> = Result<T, Errno>;

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
    fn anonymous(size: usize, flags: MapFlags) -> Outcome<Mapping> {
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

    fn shared(fd: BorrowedFd<'_>, size: usize) -> Outcome<Mapping> {
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

/// The size of a page in bytes.
pub(crate) fn page_size() -> usize {
    // rustix's own panics on old kernels where /proc is not mounted.
    // SAFETY: sysconf only looks.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The release of the running kernel.
pub(crate) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The effective user id.
pub(crate) fn effective_uid() -> u32 {
    umf_os::process::effective_uid()
}

/// The effective capabilities of this thread.
pub(crate) fn effective_capabilities() -> Outcome<CapabilitySet> {
    rustix::thread::capabilities(None).map(|sets| sets.effective)
}

/// Whether other processes of this user may look into this one.
pub(crate) fn dumpable() -> Outcome<DumpableBehavior> {
    rustix::process::dumpable_behavior()
}

/// Lets this process have as many fds as it may.
pub(crate) fn raise_fd_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // What may not be raised stays as it was; whoever runs out of fds says so.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A resource limit of this process.
pub(crate) fn resource_limit(resource: Resource) -> Rlimit {
    rustix::process::getrlimit(resource)
}

/// The size and free space of the file system at `path`.
pub(crate) fn file_system(path: &str) -> Outcome<StatVfs> {
    rustix::fs::statvfs(path)
}

/// Whether this process may open `path` for reading and writing. Does not open it: a DRM card makes
/// its first opener the display master.
pub(crate) fn may_read_and_write(path: &Path) -> Outcome<()> {
    rustix::fs::accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::empty())
}

/// A new memfd of `size` bytes with sealing allowed, close-on-exec.
pub(crate) fn memfd(size: usize, more: MemfdFlags) -> Outcome<OwnedFd> {
    let fd = rustix::fs::memfd_create("umf-info", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more)?;
    rustix::fs::ftruncate(&fd, size as u64)?;
    Ok(fd)
}

/// Adds `seals` to a new memfd of one page, and looks whether they hold.
pub(crate) fn seal_a_memfd(seals: SealFlags) -> Outcome<()> {
    let fd = memfd(page_size(), MemfdFlags::empty())?;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    if rustix::fs::fcntl_get_seals(&fd)?.contains(seals) { Ok(()) } else { Err(Errno::NOTSUP) }
}

/// Makes a memfd whose `exec` bit is sealed off (Linux 6.3), and looks whether it is.
pub(crate) fn memfd_noexec_seal() -> Outcome<()> {
    // F_SEAL_EXEC (0x20) has no name in rustix.
    let fd = memfd(page_size(), MemfdFlags::NOEXEC_SEAL)?;
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if seals.bits() & 0x20 != 0 { Ok(()) } else { Err(Errno::NOTSUP) }
}

/// A pidfd of this process.
pub(crate) fn pidfd_of_self() -> Outcome<OwnedFd> {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
}

/// Fetches a descriptor of this process through a pidfd of itself, and looks whether it is the same
/// file.
pub(crate) fn fetch_own_fd() -> Outcome<()> {
    let own = memfd(page_size(), MemfdFlags::empty())?;
    let fetched = rustix::process::pidfd_getfd(pidfd_of_self()?, own.as_raw_fd(), PidfdGetfdFlags::empty())?;
    let (own, fetched) = (rustix::fs::fstat(&own)?, rustix::fs::fstat(&fetched)?);
    if (own.st_dev, own.st_ino) == (fetched.st_dev, fetched.st_ino) { Ok(()) } else { Err(Errno::BADF) }
}

/// Reads eight bytes at `address` in process `pid`.
pub(crate) fn read_remote(pid: i32, address: u64) -> Outcome<[u8; 8]> {
    let mut bytes = [0_u8; 8];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(usize::try_from(address).map_err(|_| Errno::FAULT)?),
        iov_len: bytes.len(),
    };
    // SAFETY: the local vector is `bytes`, borrowed for the call; the kernel checks the remote
    // address itself.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(read) {
        Ok(read) if read == bytes.len() => Ok(bytes),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(last_error()),
    }
}

/// Reads bytes of this process through `process_vm_readv`.
pub(crate) fn read_own_memory() -> Outcome<()> {
    let bytes = *b"umf info";
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let read = read_remote(pid, bytes.as_ptr().expose_provenance() as u64)?;
    if read == bytes { Ok(()) } else { Err(Errno::IO) }
}

/// Asks a connected pair of sockets for a pidfd of its peer.
pub(crate) fn peer_pidfd() -> Outcome<()> {
    let (socket, _peer) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut fd: libc::c_int = -1;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value and its size are live locals of the type that the option takes.
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
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Asks for a page that a forked child finds zeroed.
pub(crate) fn wipe_on_fork() -> Outcome<()> {
    let page = Mapping::anonymous(page_size(), MapFlags::empty())?;
    // SAFETY: the mapping is ours; the advice changes nothing in this process.
    unsafe { rustix::mm::madvise(page.address, page.size, Advice::LinuxWipeOnFork) }
}

/// Maps one huge page's worth of a memfd and collapses it into a huge page. `size` is the huge
/// page's size in bytes.
pub(crate) fn collapse_memfd(size: usize) -> Outcome<()> {
    let fd = memfd(size, MemfdFlags::empty())?;
    // Twice the size, so that an aligned address lies in it.
    let reserved = Mapping::anonymous(size.checked_mul(2).ok_or(Errno::NOMEM)?, MapFlags::NORESERVE)?;
    let aligned = reserved.address.map_addr(|address| address.next_multiple_of(size));
    // SAFETY: `aligned..aligned + size` lies inside `reserved`, which is ours and has no other
    // user; it is unmapped with it.
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
    // SAFETY: the mapping is ours; collapsing keeps its contents.
    let rc = unsafe { libc::madvise(aligned, size, libc::MADV_COLLAPSE) };
    if rc == 0 { Ok(()) } else { Err(last_error()) }
}

/// Registers this process for expedited barriers and issues one.
pub(crate) fn private_membarrier() -> Outcome<()> {
    rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
    rustix::thread::membarrier(MembarrierCommand::PrivateExpedited)
}

/// Reserves one huge page of `size` bytes (a power of two) through a memfd, and gives it back
/// untouched.
pub(crate) fn reserve_huge_page(size: usize) -> Outcome<()> {
    let encoded = MemfdFlags::from_bits_retain(size.trailing_zeros() << 26);
    let fd = memfd(size, MemfdFlags::HUGETLB | encoded)?;
    Mapping::shared(fd.as_fd(), size).map(drop)
}

/// Binds a page that nobody has touched to NUMA node `node`.
pub(crate) fn bind_to_node(node: u32) -> Outcome<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    const WORDS: usize = 16;
    let page = Mapping::anonymous(page_size(), MapFlags::empty())?;
    let mut nodes: [libc::c_ulong; WORDS] = [0; WORDS];
    let node = node as usize;
    *nodes.get_mut(node / BITS).ok_or(Errno::INVAL)? |= 1 << (node % BITS);
    // SAFETY: the mapping is ours, and the mask is a live local of the size given (the kernel wants
    // one bit more).
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
