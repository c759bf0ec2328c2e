//! Diagnosis of a refusal by the kernel: the probable reason why this process may not access a
//! producer, and the remedy.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use super::Mode;
use crate::error::FailedAttempt;

/// Remedy for a seccomp filter.
const SECCOMP: &str = "mount one directory into both containers and set UMF_IPC_DIR to it in both; or permit the call in the seccomp profile: docker run \
     --cap-add=SYS_PTRACE, podman run --cap-add=SYS_PTRACE, or in Kubernetes securityContext.capabilities.add: [SYS_PTRACE]";
/// Remedy for a producer in another pid namespace.
pub(super) const OTHER_PID_NAMESPACE: &str = "mount one directory into both and set UMF_IPC_DIR to it in both; or, in one network namespace, \
     UMF_IPC_EXCHANGE=socket in the producer; or share the pid namespace (--pid=container:NAME, \
     shareProcessNamespace: true)";
/// Remedy for a producer in another network namespace.
pub(super) const OTHER_NETWORK_NAMESPACE: &str = "mount one directory into both and set UMF_IPC_DIR to it in both; or run both in one network namespace \
     (--network=container:NAME, one pod); get a new handle if the producer ended or called exec";
/// Remedy for a producer that answers in a directory.
pub(super) const MOUNT_DIRECTORY: &str = "mount the producer's directory into this container (-v VOLUME:/umf, an emptyDir or hostPath volume) and set \
     UMF_IPC_DIR to its path here; get a new handle if the producer ended";
/// Remedy for a producer that does not answer in a directory.
pub(super) const SET_DIRECTORY: &str =
    "mount one directory into both, and set UMF_IPC_DIR to it in both before the first export";

/// Explains a refused `pidfd_getfd` or open of `/proc/<pid>/fd/<n>`.
pub(super) fn refused(mode: Mode, pid: u32, errno: Errno) -> FailedAttempt {
    let (reason, remedy) = cause(mode, pid, errno);
    FailedAttempt { mode, reason, remedy }
}

fn cause(mode: Mode, pid: u32, errno: Errno) -> (String, &'static str) {
    if mode == Mode::Pidfd && is_pidfd_getfd_filtered() {
        return (
            format!(
                "{errno}: a seccomp filter refuses pidfd_getfd to this process, as the default profiles of container engines do"
            ),
            SECCOMP,
        );
    }
    if errno == Errno::NOSYS {
        return (
            "this kernel has no pidfd_getfd".to_owned(),
            "use Linux 5.6 or later, or UMF_IPC_EXCHANGE=procfs",
        );
    }
    if in_other_user_namespace(pid) {
        return (
            format!("{errno}: producer {pid} is in another user namespace, where this process has no rights"),
            "UMF_IPC_EXCHANGE=socket in the producer; or UMF_IPC_ALLOW=handle with one UMF_IPC_DIR in both; or run both in one \
             user namespace (podman --userns=container:NAME)",
        );
    }
    let own = umf_os::process::effective_uid();
    if let Some(uid) = uid_of(pid).filter(|&uid| uid != own && own != 0) {
        return (
            format!("{errno}: the producer runs as uid {uid}, this process as uid {own}"),
            "run both as the same user (runAsUser), or UMF_IPC_ALLOW=handle with one UMF_IPC_DIR in both, or give this process \
             CAP_SYS_PTRACE",
        );
    }
    let scope = yama_scope();
    if mode == Mode::Pidfd && scope > 0 {
        return match scope {
            1 => (
                format!(
                    "{errno}: kernel.yama.ptrace_scope is 1, so only ancestors may attach to process {pid}"
                ),
                "sysctl kernel.yama.ptrace_scope=0, or UMF_IPC_PTRACER=any in the producer, or \
                 UMF_IPC_EXCHANGE=auto or procfs",
            ),
            2 => (
                format!("{errno}: kernel.yama.ptrace_scope is 2, so only CAP_SYS_PTRACE may attach"),
                "sysctl kernel.yama.ptrace_scope=0, grant CAP_SYS_PTRACE, or UMF_IPC_EXCHANGE=procfs or socket",
            ),
            _ => (
                format!(
                    "{errno}: kernel.yama.ptrace_scope is {scope}, so no process may attach until the next boot"
                ),
                "use UMF_IPC_EXCHANGE=procfs or socket",
            ),
        };
    }
    if is_undumpable(pid) {
        return (
            format!(
                "{errno}: producer {pid} is not dumpable (setuid, changed credentials, or PR_SET_DUMPABLE 0)"
            ),
            "UMF_IPC_EXCHANGE=socket in the producer, or prctl(PR_SET_DUMPABLE, 1) there",
        );
    }
    if !has_capabilities_of(pid) {
        return (
            format!(
                "{errno}: producer {pid} has capabilities that this process lacks, so that the kernel refuses access to it"
            ),
            "mount one directory into both and set UMF_IPC_DIR to it in both; or UMF_IPC_EXCHANGE=socket in the producer; or \
             start both with the same capabilities (--cap-add, --cap-drop)",
        );
    }
    (
        format!("{errno}"),
        "UMF_IPC_EXCHANGE=socket in the producer; `umf info` shows which modes this process may use",
    )
}

pub(crate) fn yama_scope() -> u32 {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns whether a process is known to run as a user that this process is not, and this process
/// does not run as root, which sockets serve too.
pub(super) fn belongs_to_other_user(pid: u32) -> bool {
    let own = umf_os::process::effective_uid();
    own != 0 && uid_of(pid).is_some_and(|uid| uid != own)
}

/// Returns the real uid of a process.
fn uid_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns whether a process is not dumpable: then the files in `/proc/<pid>` belong to root, and
/// the folder does not (`proc_pid(5)`).
fn is_undumpable(pid: u32) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}/status")).map(|metadata| metadata.uid());
    matches!((owner, uid_of(pid)), (Ok(owner), Some(uid)) if owner != uid)
}

/// Returns whether a process is known to be in the network namespace of this one. `false` if this
/// process may not read the link.
pub(super) fn shares_network_namespace(pid: u32) -> bool {
    let inode = |path: &str| fs::metadata(path).map(|metadata| metadata.ino()).ok();
    let own = inode("/proc/self/ns/net");
    own.is_some() && own == inode(&format!("/proc/{pid}/ns/net"))
}

fn in_other_user_namespace(pid: u32) -> bool {
    let inode = |path: &str| fs::metadata(path).map(|metadata| metadata.ino()).ok();
    match (inode("/proc/self/ns/user"), inode(&format!("/proc/{pid}/ns/user"))) {
        (Some(own), Some(producer)) => own != producer,
        // Reading the link needs ptrace access. The maps of one namespace are the same for every
        // reader (`user_namespaces(7)`).
        _ => {
            let map = |process: &str| fs::read_to_string(format!("/proc/{process}/uid_map")).ok();
            map("self") != map(&pid.to_string())
        }
    }
}

/// Returns whether this process has all permitted capabilities of another one. Without them the
/// kernel refuses access to it, whatever its user is (`ptrace(2)`, access modes).
fn has_capabilities_of(pid: u32) -> bool {
    let permitted = |process: &str, field: &str| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    match (permitted("self", "CapEff:"), permitted(&pid.to_string(), "CapPrm:")) {
        (Some(own), Some(producer)) => producer & !own == 0,
        _ => true,
    }
}

/// Returns whether a seccomp filter refuses `pidfd_getfd` to this process: the kernel itself always
/// permits a process to get descriptors of its own.
fn is_pidfd_getfd_filtered() -> bool {
    let own = umf_os::process::pidfd_open(umf_os::process::pid());
    match own.and_then(|own| umf_os::process::pidfd_getfd(own.as_fd(), own.as_raw_fd())) {
        Err(Errno::PERM | Errno::ACCESS) => true,
        Err(Errno::NOSYS) => has_seccomp_filter(),
        // Without a free descriptor, this process cannot find out.
        _ => false,
    }
}

fn has_seccomp_filter() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.starts_with("Seccomp:") && line.trim_end().ends_with('2'))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn lack_of_descriptors_is_no_seccomp_filter() {
        // SAFETY: the child makes system calls and allocates; glibc's allocator works in a forked
        // child.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` is valid for the read.
            let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
            let (reason, _) = cause(Mode::Pidfd, umf_os::process::pid(), Errno::PERM);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!limited || reason.contains("seccomp"))) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}
