//! `umf info`, groups "kernel" and "permissions": tests kernel features, and reports credentials
//! and confinement. Under a seccomp filter, each test runs in a child, which the filter may kill.

use std::os::unix::fs::MetadataExt;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use super::finding::{Finding, FindingState, Group, allow, ask};
use super::transfer::{Role, run_in_child};
use super::{numa, procfs};
use crate::child::ChildError;
use crate::sys::{self, SysResult};

/// The largest huge page that a test allocates, in bytes.
const LARGEST_TEST_PAGE: u64 = 64 << 20;

/// The kernel features to test.
static FEATURE_TESTS: [FeatureTest; 10] = [
    FeatureTest {
        key: "pidfd_open",
        why: "A pidfd identifies a producer without pid reuse, and reports its exit.",
        since: "5.3",
        call: "pidfd_open",
        test: || sys::pidfd_of_self().map(drop),
    },
    FeatureTest {
        key: "pidfd_getfd",
        why: "The fastest way to fetch a peer's memory.",
        since: "5.6",
        call: "pidfd_getfd",
        test: sys::fetch_own_fd,
    },
    FeatureTest {
        key: "process_vm_readv",
        why: "One copy between processes without mapping anything.",
        since: "3.2",
        call: "process_vm_readv",
        test: sys::read_own_memory,
    },
    FeatureTest {
        key: "memfd_seals",
        why: "Shared memory without a name, whose size a peer cannot change.",
        since: "3.17",
        call: "memfd_create",
        test: || sys::seal_a_memfd(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
    },
    FeatureTest {
        key: "mfd_noexec_seal",
        why: "Shared memory that cannot be made executable.",
        since: "6.3",
        call: "memfd_create",
        test: sys::memfd_noexec_seal,
    },
    FeatureTest {
        key: "f_seal_future_write",
        why: "Guarantees that a read-only import stays read-only.",
        since: "5.1",
        call: "memfd_create",
        test: || sys::seal_a_memfd(SealFlags::FUTURE_WRITE),
    },
    FeatureTest {
        key: "so_peerpidfd",
        why: "Reports a peer's exit where pids are not visible.",
        since: "6.5",
        call: "getsockopt",
        test: sys::peer_pidfd,
    },
    FeatureTest {
        key: "madv_wipeonfork",
        why: "Detects a fork in the child, without a hook.",
        since: "4.14",
        call: "madvise",
        test: sys::wipe_on_fork,
    },
    FeatureTest {
        key: "madv_collapse",
        why: "Huge pages for shared memory where shmem_enabled is never.",
        since: "6.1",
        call: "madvise",
        test: collapse,
    },
    FeatureTest {
        key: "membarrier",
        why: "Lets fast paths run without memory fences.",
        since: "4.14",
        call: "membarrier",
        test: sys::private_membarrier,
    },
];

/// Probes the kernel.
pub(crate) fn probe() -> Group {
    let release = ask("release", "Tells which features to expect; each is tested below regardless.");
    let mut findings = vec![release.ok(sys::kernel_release())];
    findings.extend(FEATURE_TESTS.iter().map(FeatureTest::run));
    findings.push(seccomp());
    Group { key: "kernel", title: "Kernel", findings }
}

fn collapse() -> SysResult<()> {
    let size = procfs::number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").unwrap_or(2 << 20);
    match usize::try_from(size) {
        Ok(bytes) if size <= LARGEST_TEST_PAGE && size.is_power_of_two() => sys::collapse_memfd(bytes),
        // A huge page of 512 MiB is too large for a test: reported as a lack of memory.
        _ => Err(Errno::NOMEM),
    }
}

fn seccomp() -> Finding {
    let question = ask("seccomp", "A filter can refuse any of the calls above.");
    match seccomp_mode() {
        Ok(SeccompMode::None) => question.ok("no filter").value("none"),
        Ok(SeccompMode::Strict) => {
            question.missing("strict", "Nothing works in strict mode: run without it.").value("strict")
        }
        Ok(SeccompMode::Installed) => {
            question.ok("a filter is installed; what it refuses shows above and below").value("filter")
        }
        Err(unread) => question.unknown(unread),
    }
}

/// A test of one kernel feature.
pub(super) struct FeatureTest {
    /// Stable name of the finding.
    pub(super) key: &'static str,
    /// Reason why it matters to umf.
    pub(super) why: &'static str,
    /// Kernel release that introduced it.
    pub(super) since: &'static str,
    /// System call that it needs.
    pub(super) call: &'static str,
    /// Runs the test and undoes its effects.
    pub(super) test: fn() -> SysResult<()>,
}

/// Seccomp mode of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SeccompMode {
    /// No filter, or a kernel without seccomp.
    None,
    /// Only read, write and exit are allowed.
    Strict,
    /// A filter checks every system call.
    Installed,
}

/// Reads the seccomp mode of this process.
///
/// # Errors
/// The file that could not be read.
pub(super) fn seccomp_mode() -> Result<SeccompMode, String> {
    let status = procfs::text("/proc/self/status")?;
    Ok(match procfs::field(&status, "Seccomp") {
        Some("1") => SeccompMode::Strict,
        Some("2") => SeccompMode::Installed,
        _ => SeccompMode::None,
    })
}

/// Returns whether memfd_create works. Where a filter may kill for it, a child tries it.
pub(super) fn has_memfd() -> bool {
    find_test("memfd_seals").is_none_or(|test| test.run().state != FindingState::Missing)
}

/// Returns the test with this key.
pub(super) fn find_test(key: &str) -> Option<&'static FeatureTest> {
    FEATURE_TESTS.iter().chain([&numa::BIND_TEST]).find(|test| test.key == key)
}

impl FeatureTest {
    /// Runs the test, in a child if a seccomp filter is installed.
    pub(super) fn run(&self) -> Finding {
        let question = ask(self.key, self.why);
        if seccomp_mode() != Ok(SeccompMode::Installed) {
            return question.tested((self.test)(), self.since, self.call);
        }
        match run_in_child(&Role::Test(self.key.to_owned())) {
            Ok(0) => question.tested(Ok(()), self.since, self.call),
            Ok(number) => question.tested(Err(Errno::from_raw_os_error(number)), self.since, self.call),
            Err(ChildError::SeccompKill) => {
                let remedy = format!("A seccomp filter kills for {}. {}", self.call, allow(self.call));
                question.missing("killed (SIGSYS)", remedy).value(false)
            }
            Err(error) => {
                let remedy = "Raise the limits of processes (`ulimit -u`), open files (`ulimit -n`) or address space (`ulimit -v`).";
                question.limited(format!("could not be tried: a child {error}"), remedy).value(Value::Null)
            }
        }
    }
}

/// `PROC_USER_INIT_INO` and `PROC_PID_INIT_INO` of the kernel: inodes of the initial namespaces.
const INITIAL_USER: u64 = 0xEFFF_FFFD;
const INITIAL_PID: u64 = 0xEFFF_FFFC;

/// Probes this process's credentials and confinement.
pub(super) fn probe_permissions() -> Group {
    let findings = vec![
        euid(),
        capability(
            "cap_sys_ptrace",
            CapabilitySet::SYS_PTRACE,
            "Reaches other users' processes, and siblings under yama.",
        ),
        capability("cap_ipc_lock", CapabilitySet::IPC_LOCK, "Locks memory beyond RLIMIT_MEMLOCK."),
        capability(
            "cap_sys_nice",
            CapabilitySet::SYS_NICE,
            "Moves pages of others between nodes; Docker ties mbind to it.",
        ),
        yama(),
        dumpable(),
        namespace("user_namespace", "user", INITIAL_USER, "Peers in other user namespaces are out of reach."),
        namespace(
            "pid_namespace",
            "pid",
            INITIAL_PID,
            "A peer outside this one has no pid here: only sockets reach it.",
        ),
    ];
    Group { key: "permissions", title: "Permissions", findings }
}

/// Reads yama's `ptrace_scope`. Returns `None` where yama is absent, and an error where it cannot
/// be read.
fn yama_scope() -> Result<Option<u64>, String> {
    // If this file is missing, /proc is not mounted, and yama may be there.
    procfs::text("/proc/sys/kernel/osrelease")?;
    if !std::path::Path::new("/proc/sys/kernel/yama").exists() {
        return Ok(None);
    }
    procfs::number("/proc/sys/kernel/yama/ptrace_scope").map(Some)
}

fn euid() -> Finding {
    let uid = sys::effective_uid();
    let text = if uid == 0 { "0 (root)".to_owned() } else { uid.to_string() };
    ask("euid", "Processes reach each other's memory only as the same user.").ok(text).value(uid)
}

fn capability(key: &'static str, wanted: CapabilitySet, why: &'static str) -> Finding {
    let question = ask(key, why);
    match sys::effective_capabilities() {
        Ok(held) if held.contains(wanted) && in_initial_user_namespace() != Some(false) => {
            question.ok("held").value(true)
        }
        Ok(held) if held.contains(wanted) => question.ok("held, over this user namespace only").value(true),
        Ok(_) => {
            let upper = key.trim_start_matches("cap_").to_uppercase();
            let remedy =
                format!("Where that is needed: run as root, or in a container with `--cap-add {upper}`.");
            question.missing("not held", remedy).value(false)
        }
        Err(number) => question.unknown(format!("capget: {}", procfs::errno_name(number))),
    }
}

fn yama() -> Finding {
    let question =
        ask("yama_ptrace_scope", "Decides whether processes of one user may fetch each other's fds.");
    let scope = match yama_scope() {
        Ok(None) => return question.ok("absent: not restricted").value(Value::Null),
        Ok(Some(scope)) => scope,
        Err(unread) => return question.unknown(unread),
    };
    let allowed = sys::effective_capabilities().is_ok_and(|held| held.contains(CapabilitySet::SYS_PTRACE));
    let finding = match scope {
        0 => question.ok("0: the same user may"),
        1 | 2 if allowed => question.ok(format!("{scope}: lifted by CAP_SYS_PTRACE")),
        1 => question.limited(
            "1: only a parent may, siblings may not",
            "Run `sysctl kernel.yama.ptrace_scope=0` as root, exchange by procfs or socket \
             (`UMF_IPC_EXCHANGE=procfs`), or let producers allow it (`UMF_IPC_PTRACER=any`).",
        ),
        2 => question.limited(
            "2: only CAP_SYS_PTRACE may",
            "Run `sysctl kernel.yama.ptrace_scope=0` as root, or exchange by procfs or socket \
             (`UMF_IPC_EXCHANGE=procfs`).",
        ),
        _ => question.missing(
            format!("{scope}: no process may, until the next boot"),
            "Exchange by procfs or socket (`UMF_IPC_EXCHANGE=procfs`), or set \
             `kernel.yama.ptrace_scope=0` in /etc/sysctl.d and reboot.",
        ),
    };
    finding.value(scope)
}

fn dumpable() -> Finding {
    let question = ask("dumpable", "A process that is not dumpable cannot be reached by pidfd or procfs.");
    let remedy = "Make the program readable by its user, without set-uid bits or file capabilities, \
                  or call `prctl(PR_SET_DUMPABLE, 1)`.";
    match sys::dumpable() {
        Ok(DumpableBehavior::Dumpable) => question.ok("yes").value(true),
        Ok(DumpableBehavior::NotDumpable) => question.missing("no", remedy).value(false),
        Ok(_) => question.missing("by root only", remedy).value(false),
        Err(number) => question.unknown(format!("prctl: {}", procfs::errno_name(number))),
    }
}

/// Returns whether capabilities are valid outside of containers; `None` if `/proc` cannot be read.
pub(crate) fn in_initial_user_namespace() -> Option<bool> {
    std::fs::metadata("/proc/self/ns/user").ok().map(|found| found.ino() == INITIAL_USER)
}

fn namespace(key: &'static str, file: &str, initial: u64, why: &'static str) -> Finding {
    let question = ask(key, why);
    let path = format!("/proc/self/ns/{file}");
    let Ok(inode) = std::fs::metadata(&path).map(|found| found.ino()) else {
        return question.unknown(format!("{path}: cannot be read"));
    };
    let value = json!({ "initial": inode == initial, "inode": inode });
    if inode == initial {
        question.ok("the initial one").value(value)
    } else {
        question.ok(format!("not the initial one ({inode})")).value(value)
    }
}
