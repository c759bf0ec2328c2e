//! Who this process is, and what that lets it and its peers do to each other.

use std::os::unix::fs::MetadataExt;

use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;
use serde_json::json;

use super::finding::{Finding, Group, ask};
use super::{errno, kernel_files};
use crate::sys;

/// `PROC_USER_INIT_INO` and `PROC_PID_INIT_INO` of the kernel: the inodes of the initial namespaces.
const INITIAL_USER: u64 = 0xEFFF_FFFD;
const INITIAL_PID: u64 = 0xEFFF_FFFC;

/// Probes this process's credentials and confinement.
pub(crate) fn probe() -> Group {
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

/// The scope of yama's restriction; none where yama is absent. `Err` where it is there and cannot be read.
pub(crate) fn yama_scope() -> Result<Option<u64>, String> {
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
        Err(number) => question.unknown(format!("capget: {}", errno::name(number))),
    }
}

fn yama() -> Finding {
    let question =
        ask("yama_ptrace_scope", "Decides whether processes of one user may fetch each other's fds.");
    let scope = match yama_scope() {
        Ok(None) => return question.ok("absent: not restricted").value(serde_json::Value::Null),
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
        Err(number) => question.unknown(format!("prctl: {}", errno::name(number))),
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
