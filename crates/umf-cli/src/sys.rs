//! The system calls of this program: those that probe what the kernel and the devices grant.
//!
//! Every function undoes what it did before it returns: descriptors are closed, mappings unmapped.

pub(crate) mod bare_open;
pub(crate) mod clocks;
pub(crate) mod pipes;
pub(crate) mod processors;
pub(crate) mod remote;
pub(crate) mod shm;

use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Access, AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags, StatVfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit};
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
        // SAFETY: the mapping is this value's own, and nothing borrows from it. An error leaves it mapped, harmlessly.
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
    umf::core::process::effective_uid()
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

/// Whether this process may open `path` for reading and writing. Does not open it: a DRM card makes its first opener
/// the display master.
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

/// A pidfd of process `pid`.
pub(crate) fn pidfd(pid: i32) -> Outcome<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// A copy of descriptor `number` of the process that `pidfd` names.
pub(crate) fn fetch_fd(pidfd: BorrowedFd<'_>, number: RawFd) -> Outcome<OwnedFd> {
    rustix::process::pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())
}

/// Fetches a descriptor of this process through a pidfd of itself, and looks whether it is the same file.
pub(crate) fn fetch_own_fd() -> Outcome<()> {
    let own = memfd(page_size(), MemfdFlags::empty())?;
    let fetched = fetch_fd(pidfd_of_self()?.as_fd(), own.as_raw_fd())?;
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
    // SAFETY: the local vector is `bytes`, borrowed for the call; the kernel checks the remote address itself.
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

/// Maps one huge page's worth of a memfd and collapses it into a huge page. `size` is the huge page's size in bytes.
pub(crate) fn collapse_memfd(size: usize) -> Outcome<()> {
    let fd = memfd(size, MemfdFlags::empty())?;
    // Twice the size, so that an aligned address lies in it.
    let reserved = Mapping::anonymous(size.checked_mul(2).ok_or(Errno::NOMEM)?, MapFlags::NORESERVE)?;
    let aligned = reserved.address.map_addr(|address| address.next_multiple_of(size));
    // SAFETY: `aligned..aligned + size` lies inside `reserved`, which is ours and has no other user; it is unmapped with it.
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

/// Reserves one huge page of `size` bytes (a power of two) through a memfd, and gives it back untouched.
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
    // SAFETY: the mapping is ours, and the mask is a live local of the size given (the kernel wants one bit more).
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

/// Eight random bytes.
pub(crate) fn random() -> Outcome<u64> {
    let mut bytes = [0_u8; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK)?;
    if filled == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::AGAIN) }
}

/// Reads the first eight bytes of a file.
pub(crate) fn read_word(fd: BorrowedFd<'_>) -> Outcome<u64> {
    let mut bytes = [0_u8; 8];
    let read = rustix::io::pread(fd, &mut bytes, 0)?;
    if read == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::IO) }
}

/// Writes the first eight bytes of a file.
pub(crate) fn write_word(fd: BorrowedFd<'_>, word: u64) -> Outcome<()> {
    let written = rustix::io::pwrite(fd, &word.to_ne_bytes(), 0)?;
    if written == size_of::<u64>() { Ok(()) } else { Err(Errno::IO) }
}

/// Opens a file for reading.
pub(crate) fn open_to_read(path: &str) -> Outcome<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// Sends one byte and descriptor `fd` over a socket.
pub(crate) fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Outcome<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut control, flags).map(drop)
}

/// Receives the descriptor that [`send_fd`] sends.
pub(crate) fn receive_fd(socket: BorrowedFd<'_>) -> Outcome<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(Errno::BADF)
}

/// The effective user id of the process at the other end of a socket.
pub(crate) fn peer_uid(socket: BorrowedFd<'_>) -> Outcome<u32> {
    rustix::net::sockopt::socket_peercred(socket).map(|credentials| credentials.uid.as_raw())
}

/// Waits until one of `fds` can be read, has an error or is closed. False when `timeout` passed first.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> Outcome<bool> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).map_err(|_| Errno::INVAL)?;
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        // The caller looks at its deadline and waits again.
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Ends this process by `SIGALRM` after `seconds`, and at once when its parent dies.
pub(crate) fn live_no_longer_than(seconds: u32) {
    // Best effort: the parent kills this process as well.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // SAFETY: the signal's default action ends the process, and this program installs no other.
    unsafe { libc::alarm(seconds) };
}

fn last_error() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(number)
}
