//! What the kernel has, tried out on this process itself, or in a child where a seccomp filter
//! might kill for it; and what this process may do to its peers.

use std::os::unix::fs::MetadataExt;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use super::finding::{Finding, Group, ask};
use super::transfer::{Role, play};
use super::{kernel_files, numa};
use crate::child::Silence;
use crate::sys::{self, Outcome};

/// The largest huge page that is worth making for a trial.
const LARGEST_TRIAL: u64 = 64 << 20;

/// What is tried.
static TRIALS: [Trial; 10] = [
    Trial {
        key: "pidfd_open",
        why: "A pidfd names a producer beyond doubt and tells of its death.",
        since: "5.3",
        attempt: || sys::pidfd_of_self().map(drop),
    },
    Trial {
        key: "pidfd_getfd",
        why: "The fastest way to fetch a peer's memory.",
        since: "5.6",
        attempt: sys::fetch_own_fd,
    },
    Trial {
        key: "process_vm_readv",
        why: "One copy between processes without mapping anything.",
        since: "3.2",
        attempt: sys::read_own_memory,
    },
    Trial {
        key: "memfd_seals",
        why: "Shared memory without a name, whose size a peer cannot change.",
        since: "3.17",
        attempt: || sys::seal_a_memfd(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
    },
    Trial {
        key: "mfd_noexec_seal",
        why: "Shared memory that nobody can make executable.",
        since: "6.3",
        attempt: sys::memfd_noexec_seal,
    },
    Trial {
        key: "f_seal_future_write",
        why: "Guarantees that a read-only import stays read-only.",
        since: "5.1",
        attempt: || sys::seal_a_memfd(SealFlags::FUTURE_WRITE),
    },
    Trial {
        key: "so_peerpidfd",
        why: "Tells of a peer's death where pids are not visible.",
        since: "6.5",
        attempt: sys::peer_pidfd,
    },
    Trial {
        key: "madv_wipeonfork",
        why: "Tells a forked child that it is one, without a hook.",
        since: "4.14",
        attempt: sys::wipe_on_fork,
    },
    Trial {
        key: "madv_collapse",
        why: "Huge pages for shared memory where shmem_enabled is never.",
        since: "6.1",
        attempt: collapse,
    },
    Trial {
        key: "membarrier",
        why: "Lets the hot paths go without fences of their own.",
        since: "4.14",
        attempt: sys::private_membarrier,
    },
];

/// Probes the kernel.
pub(crate) fn probe() -> Group {
    let release = ask("release", "Says which abilities to expect; each is tried below all the same.");
    let mut findings = vec![release.ok(sys::kernel_release())];
    findings.extend(TRIALS.iter().map(Trial::run));
    findings.push(seccomp());
    Group { key: "kernel", title: "Kernel", findings }
}

fn collapse() -> Outcome<()> {
    let size = kernel_files::number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").unwrap_or(2 << 20);
    match usize::try_from(size) {
        Ok(bytes) if size <= LARGEST_TRIAL && size.is_power_of_two() => sys::collapse_memfd(bytes),
        // A page of 512 MiB is too much for a trial: it ran short of size.
        _ => Err(Errno::NOMEM),
    }
}

fn seccomp() -> Finding {
    let question = ask("seccomp", "A filter can refuse any of the calls above.");
    match filter() {
        Ok(Filter::None) => question.ok("no filter").value("none"),
        Ok(Filter::Strict) => {
            question.missing("strict", "Nothing works in strict mode: run without it.").value("strict")
        }
        Ok(Filter::Installed) => {
            question.ok("a filter is installed; what it refuses shows above and below").value("filter")
        }
        Err(unread) => question.unknown(unread),
    }
}

/// One thing to try.
pub(super) struct Trial {
    /// The finding's stable name.
    pub(super) key: &'static str,
    /// Why it matters to umf.
    pub(super) why: &'static str,
    /// The kernel release that brought it.
    pub(super) since: &'static str,
    /// Tries it and leaves nothing behind.
    pub(super) attempt: fn() -> Outcome<()>,
}

/// What seccomp does to this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// Nothing, or the kernel has no seccomp.
    None,
    /// Only read, write and exit are left.
    Strict,
    /// A filter looks at every call.
    Installed,
}

/// Looks what seccomp does to this process.
///
/// # Errors
/// The file that could not be read.
pub(super) fn filter() -> Result<Filter, String> {
    let status = kernel_files::text("/proc/self/status")?;
    Ok(match kernel_files::field(&status, "Seccomp") {
        Some("1") => Filter::Strict,
        Some("2") => Filter::Installed,
        _ => Filter::None,
    })
}

/// The trial of this key.
pub(super) fn find(key: &str) -> Option<&'static Trial> {
    TRIALS.iter().chain([&numa::BINDING]).find(|trial| trial.key == key)
}

impl Trial {
    /// Runs the trial, here or in a child.
    pub(super) fn run(&self) -> Finding {
        let question = ask(self.key, self.why);
        if filter() != Ok(Filter::Installed) {
            return question.tried((self.attempt)(), self.since);
        }
        match play(&Role::Try(self.key.to_owned())) {
            Ok(0) => question.tried(Ok(()), self.since),
            Ok(number) => question.tried(Err(Errno::from_raw_os_error(number)), self.since),
            Err(Silence::BadCall) => {
                let remedy = "A seccomp filter kills for it: allow it in the container's profile.";
                question.missing("killed (SIGSYS)", remedy).value(false)
            }
            Err(silence) => {
                let remedy = "Make room for child processes (ulimit -u, ulimit -n).";
                question.limited(format!("could not be tried: a child {silence}"), remedy).value(Value::Null)
            }
        }
    }
}

/// `PROC_USER_INIT_INO` and `PROC_PID_INIT_INO` of the kernel: the inodes of the initial
/// namespaces.
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

/// The scope of yama's restriction; none where yama is absent. `Err` where it is there and cannot
/// be read.
fn yama_scope() -> Result<Option<u64>, String> {
    // Without this one /proc is not there, and tells nothing of yama.
    kernel_files::text("/proc/sys/kernel/osrelease")?;
    if !std::path::Path::new("/proc/sys/kernel/yama").exists() {
        return Ok(None);
    }
    kernel_files::number("/proc/sys/kernel/yama/ptrace_scope").map(Some)
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
            let remedy = format!("Where that is needed: run as root, or with --cap-add {upper}.");
            question.missing("not held", remedy).value(false)
        }
        Err(number) => question.unknown(format!("capget: {}", kernel_files::errno_name(number))),
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
            "sysctl kernel.yama.ptrace_scope=0, or exchange by procfs or socket, or let producers allow it \
             (PR_SET_PTRACER).",
        ),
        2 => question.limited(
            "2: only CAP_SYS_PTRACE may",
            "sysctl kernel.yama.ptrace_scope=0, or exchange by procfs or socket.",
        ),
        _ => question.missing(
            format!("{scope}: nobody may, until the next boot"),
            "Exchange by procfs or socket, or boot with kernel.yama.ptrace_scope=0.",
        ),
    };
    finding.value(scope)
}

fn dumpable() -> Finding {
    let question = ask("dumpable", "A process that is not dumpable cannot be reached by pidfd or procfs.");
    let remedy = "Make the program readable by its user, without set-uid bits or file capabilities, \
                  or call prctl(PR_SET_DUMPABLE, 1).";
    match sys::dumpable() {
        Ok(DumpableBehavior::Dumpable) => question.ok("yes").value(true),
        Ok(DumpableBehavior::NotDumpable) => question.missing("no", remedy).value(false),
        Ok(_) => question.missing("by root only", remedy).value(false),
        Err(number) => question.unknown(format!("prctl: {}", kernel_files::errno_name(number))),
    }
}

/// Whether capabilities reach beyond a container; none where /proc does not tell.
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
