//! System calls of this crate: memory files, sockets, and whether a listener has ended.

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

/// The identity and size of a memfd whose size is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedFile {
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

/// Returns the size of the largest file that this process may create.
pub(crate) fn file_size_limit() -> u64 {
    umf_os::process::file_size_limit().min(i64::MAX as u64)
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a close-on-exec memfd of `size` bytes, all of it holes, and seals its size.
pub(crate) fn memfd(name: &str, size: u64) -> Result<OwnedFd> {
    let fd = umf_os::memfd::create(name, size)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Returns the identity and size of a memory file that no process can truncate, else `None`.
pub(crate) fn sealed_file(fd: impl AsFd) -> Result<Option<SealedFile>> {
    let found = umf_os::memfd::of_sealed_size(fd)?;
    Ok(found.map(|(identity, size)| SealedFile { device: identity.device, inode: identity.inode, size }))
}

/// Returns a non-blocking socket, and the abstract address of this name.
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

/// Returns whether the process that listened at a connection's other end has ended. A child that
/// was made by a raw `clone`, without fork handlers, may still have its socket open.
pub(crate) fn listener_has_ended(connection: BorrowedFd<'_>) -> bool {
    match so_peerpidfd(connection) {
        Ok(pidfd) => has_ended(pidfd.as_fd()),
        // The process was reaped: ESRCH, EINVAL before Linux 6.16.
        Err(Errno::SRCH | Errno::INVAL) => true,
        // Linux before 6.5. A reused pid counts as that of the listener.
        Err(_) => peer(connection).is_ok_and(|(_, pid)| is_free(pid)),
    }
}

/// Returns whether no process has this pid, in this pid namespace.
fn is_free(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return false };
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).is_err_and(|errno| errno == Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_file_accepts_sealed_memfd_only() {
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
    fn pid_of_own_process_is_not_free() {
        assert!(!is_free(rustix::process::getpid().as_raw_nonzero().get()));
        // Above the largest `pid_max`.
        assert!(is_free(i32::MAX));
        assert!(!is_free(0), "an unknown pid does not count as ended");
    }
}
