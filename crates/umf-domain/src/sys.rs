//! System calls of this crate.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};
pub(crate) use umf_os::file::reserve;
pub(crate) use umf_os::process::effective_uid;
use umf_os::process::has_ended;
use umf_os::socket::{peer, so_peerpidfd};
pub(crate) use umf_os::{CloseOnFork, SharedMapping};

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Of a file of the kernel's own tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
}

pub(crate) fn random() -> Result<[u64; 2]> {
    let bytes = u128::from_ne_bytes(umf_os::process::random()?);
    Ok([bytes as u64, (bytes >> 64) as u64])
}

pub(crate) fn page_size() -> usize {
    umf_os::page_size()
}

/// The largest file that this process may make.
pub(crate) fn file_size_limit() -> u64 {
    umf_os::process::file_size_limit().min(i64::MAX as u64)
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A close-on-exec memfd of `size` bytes, all of it holes, whose size is sealed.
pub(crate) fn memfd(name: &str, size: u64) -> Result<OwnedFd> {
    let fd = umf_os::memfd::create(name, size)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// What an fd names, if it is memory that no process can take away.
pub(crate) fn sealed_file(fd: impl AsFd) -> Result<Option<File>> {
    let found = umf_os::memfd::of_sealed_size(fd)?;
    Ok(found.map(|(identity, size)| File { device: identity.device, inode: identity.inode, size }))
}

/// A socket that no call waits for, and the abstract address of this name.
pub(crate) fn socket(name: &[u8]) -> Result<(OwnedFd, SocketAddrUnix)> {
    let address = address(name)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((socket, address))
}

/// Returns the abstract address of this name.
pub(crate) fn address(name: &[u8]) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name)
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
