//! System calls of this crate.

use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};
use umf_ipc::fd_socket::{peer, so_peerpidfd};
use umf_ipc::system::{self, has_ended};
pub(crate) use umf_ipc::system::{CloseOnFork, effective_uid, reserve};
use umf_sync::failpoint;

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Of a file of the kernel's own tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
}

pub(crate) fn random() -> Result<[u64; 2]> {
    let bytes = u128::from_ne_bytes(system::random()?);
    Ok([bytes as u64, (bytes >> 64) as u64])
}

pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// The largest file that this process may make.
pub(crate) fn file_size_limit() -> u64 {
    system::file_size_limit().min(i64::MAX as u64)
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A close-on-exec memfd of `size` bytes, all of it holes, whose size is sealed.
pub(crate) fn memfd(name: &str, size: u64) -> Result<OwnedFd> {
    let fd = system::memfd(name, size)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// What an fd names, if it is memory that nobody can take away: tmpfs with a sealed size. Anything else could be SIGBUS or
/// a hang when it is mapped, and is `None`.
pub(crate) fn sealed_file(fd: impl AsFd) -> Result<Option<File>> {
    // First, because the kernel answers it: a file server (FUSE) is asked nothing.
    match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK | SealFlags::GROW) => {}
        Ok(_) | Err(Errno::INVAL) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    if rustix::fs::fstatfs(&fd)?.f_type.cast_unsigned() != system::TMPFS_MAGIC {
        return Ok(None);
    }
    let found = rustix::fs::fstat(&fd)?;
    Ok(Some(File { device: found.st_dev, inode: found.st_ino, size: found.st_size.cast_unsigned() }))
}

/// A shared, writable mapping of a whole file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is memory; whoever reads or writes it takes care of races.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: impl AsFd, size: usize) -> Result<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), size, protection, flags, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, size })
    }

    /// A forked child does not get this mapping, and must not drop it either: the range may be another mapping's there.
    pub(crate) fn keep_from_children(&self) -> Result<()> {
        // SAFETY: the range is this mapping; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.size, Advice::LinuxDontFork) }
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and nothing borrowed from it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
        failpoint!("domain.unmapped");
    }
}

/// A socket that no call waits for, and the abstract address of this name.
pub(crate) fn socket(name: &[u8]) -> Result<(OwnedFd, SocketAddrUnix)> {
    let address = SocketAddrUnix::new_abstract_name(name)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((socket, address))
}

/// Whether the process that listens at a connection's other end has ended, though its socket has not: a child that does
/// not know of this crate (made by a raw `clone`) may have inherited it.
pub(crate) fn listener_has_ended(connection: BorrowedFd<'_>) -> bool {
    match so_peerpidfd(connection) {
        Ok(pidfd) => has_ended(pidfd.as_fd()),
        // It was reaped: ESRCH, EINVAL before Linux 6.16.
        Err(Errno::SRCH | Errno::INVAL) => true,
        // Linux before 6.5. A pid that was given to another process meanwhile passes for the listener's.
        Err(_) => peer(connection).is_ok_and(|(_, pid)| is_free(pid)),
    }
}

/// Whether no process has this pid, in this pid namespace.
fn is_free(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return false };
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).is_err_and(|errno| errno == Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_memory_will_do() {
        let good = memfd("umf-test", 4096).unwrap();
        assert_eq!(sealed_file(&good).unwrap().map(|file| file.size), Some(4096));
        let other = memfd("umf-test", 4096).unwrap();
        assert_ne!(sealed_file(&good).unwrap(), sealed_file(&other).unwrap());
        let unsealed = rustix::fs::memfd_create("umf-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(sealed_file(&unsealed), Ok(None));
        let (socket, _) = socket(b"umf-test-sealed-file").unwrap();
        assert_eq!(sealed_file(&socket), Ok(None));
        assert_eq!(sealed_file(std::fs::File::open("/proc/self/stat").unwrap()), Ok(None));
    }

    #[test]
    fn pids_that_are_free() {
        assert!(!is_free(rustix::process::getpid().as_raw_nonzero().get()));
        // The end of the range that `pid_max` can have.
        assert!(is_free(i32::MAX));
        assert!(!is_free(0), "unknown is not ended");
    }
}
