//! The peer of a unix socket: its credentials, its pidfd, and whether it is trusted.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::SystemResult;
use crate::process::effective_uid;

umf_core::words! {
    /// Which processes may be the peer of a socket. Each rule permits processes of the same user,
    /// and of root.
    #[derive(Default)]
    pub enum Allow {
        /// No others.
        #[default]
        SameUser = "same-user",
        /// Also processes that have this process's effective group among theirs.
        Group = "group",
        /// Also processes that have the handle: they prove its key.
        Handle = "handle",
    }
}

impl Allow {
    /// Returns the mode of a socket file for this rule: the users that the rule permits can
    /// connect.
    #[must_use]
    pub const fn socket_mode(self) -> u32 {
        match self {
            Self::SameUser => 0o600,
            Self::Group => 0o660,
            Self::Handle => 0o666,
        }
    }
}

/// Compares the user of a socket's peer with the user of this process and, if the rule permits it,
/// its groups. [`Allow::Handle`] trusts a peer of another user only after a proof, which is not
/// tested here.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer_trust_by(rule: Allow, socket: BorrowedFd<'_>) -> SystemResult<PeerTrust> {
    match peer_trust(socket)? {
        PeerTrust::Trusted => Ok(PeerTrust::Trusted),
        _ if rule == Allow::Group && is_peer_in_group(socket)? => Ok(PeerTrust::Trusted),
        other => Ok(other),
    }
}

/// Whether a process trusts the peer of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTrust {
    /// The peer runs as the user of this process, or as root.
    Trusted,
    /// The peer runs as another user.
    Other,
    /// Neither the peer's user nor the user of this process has a number in this user namespace, so
    /// they cannot be compared.
    Unmapped,
}

/// Compares the user of a socket's peer with the user of this process.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer_trust(socket: BorrowedFd<'_>) -> SystemResult<PeerTrust> {
    let uid = effective_uid();
    let (peer_uid, pid) = peer(socket)?;
    if peer_uid == 0 {
        return Ok(PeerTrust::Trusted);
    }
    if peer_uid != uid {
        return Ok(if is_unmapped(peer_uid) { PeerTrust::Unmapped } else { PeerTrust::Other });
    }
    // All users without a mapping have the overflow uid (`user_namespaces(7)`).
    if !is_unmapped(uid) {
        return Ok(PeerTrust::Trusted);
    }
    // The kernel compares the users themselves: a process without capabilities may signal only
    // processes of the same user.
    let may_signal = Pid::from_raw(pid).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
    Ok(if may_signal { PeerTrust::Trusted } else { PeerTrust::Unmapped })
}

/// Returns whether the peer's effective group, or one of its other groups, is the effective group
/// of this process (`SO_PEERCRED`, `SO_PEERGROUPS`, `unix(7)`). A group without a number in this
/// user namespace is never the same.
///
/// # Errors
/// Those of `getsockopt(2)`; before Linux 4.13 the other groups are unknown.
pub fn is_peer_in_group(socket: BorrowedFd<'_>) -> SystemResult<bool> {
    const SO_PEERGROUPS: libc::c_int = 59;
    let gid = rustix::process::getegid().as_raw();
    if gid == overflow_id("/proc/sys/kernel/overflowgid") && !is_every_id_mapped("/proc/self/gid_map") {
        return Ok(false);
    }
    if credentials(socket)?.gid == gid {
        return Ok(true);
    }
    // NGROUPS_MAX is 65536: the kernel reports the needed length if these are too few.
    let mut groups = vec![0_u32; 64];
    loop {
        let mut length = libc::socklen_t::try_from(size_of_val(&*groups)).map_err(|_| Errno::INVAL)?;
        // SAFETY: `groups` is valid for a write of `length` bytes, and so is `length`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        match if result == 0 { Ok(()) } else { Err(last_errno()) } {
            Ok(()) => return Ok(groups.iter().take(count).any(|&group| group == gid)),
            Err(Errno::RANGE) if count > groups.len() && count <= 1 << 16 => groups.resize(count, 0),
            Err(Errno::NOPROTOOPT) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns the number of the network namespace of a socket, which is not used again in a boot
/// (`SO_NETNS_COOKIE`, Linux 5.14). 0 if the kernel has none.
#[must_use]
pub fn network_namespace(socket: BorrowedFd<'_>) -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is valid for a write of `length` bytes, and so is `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { cookie } else { 0 }
}

/// Makes the kernel reject descriptors that peers send to a unix socket (`SO_PASSRIGHTS`, Linux
/// 6.16). Accepted sockets inherit this. Has no effect on older kernels.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `no` is valid for a read of `length` bytes.
    unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const no).cast(), length);
    }
}

/// Returns the size of the sent data that the peer has not received, including the kernel's
/// overhead (`SIOCOUTQ`, the same request as `TIOCOUTQ`). It is 0 once the peer has received
/// everything.
///
/// # Errors
/// Those of `ioctl(2)`.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> SystemResult<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `bytes` is valid for the write.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(usize::try_from(bytes).unwrap_or(0)) } else { Err(last_errno()) }
}

/// Returns whether a uid stands for all users that have no number in this user namespace.
#[must_use]
pub fn is_unmapped(uid: u32) -> bool {
    uid == overflow_id("/proc/sys/kernel/overflowuid") && !is_every_id_mapped("/proc/self/uid_map")
}

/// Returns the number that the kernel reports for an id without a mapping (`user_namespaces(7)`).
fn overflow_id(path: &str) -> u32 {
    let text = std::fs::read_to_string(path);
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65534)
}

/// Returns whether a map of ids is that of the initial user namespace.
fn is_every_id_mapped(path: &str) -> bool {
    let map = std::fs::read_to_string(path).unwrap_or_default();
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the effective uid and the pid of a socket's peer, at the time of its `connect` or
/// `listen` (`SO_PEERCRED`, `unix(7)`). The pid is 0 if this pid namespace does not have the peer;
/// rustix cannot represent that.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer(socket: BorrowedFd<'_>) -> SystemResult<(u32, i32)> {
    credentials(socket).map(|credentials| (credentials.uid, credentials.pid))
}

fn credentials(socket: BorrowedFd<'_>) -> SystemResult<libc::ucred> {
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
    if result == 0 { Ok(credentials) } else { Err(last_errno()) }
}

/// Returns a pidfd of the peer that called `connect` or `listen`, in any pid namespace
/// (`SO_PEERPIDFD`, `unix(7)`, Linux 6.5).
///
/// # Errors
/// Those of `getsockopt(2)`: `ENOPROTOOPT` before Linux 6.5, `ESRCH` (`EINVAL` before 6.16) if the
/// process was reaped.
pub fn so_peerpidfd(socket: BorrowedFd<'_>) -> SystemResult<OwnedFd> {
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
        // SAFETY: the kernel opened this fd for the call above, and it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    } else {
        Err(last_errno())
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
