//! What the kernel has, tried out on this process itself, or in a child where a seccomp filter might kill for it.

use rustix::fs::SealFlags;
use rustix::io::Errno;

use serde_json::Value;

use super::children::{Role, play};
use super::finding::{Finding, Group, ask};
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
