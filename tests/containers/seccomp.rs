//! Docker's default seccomp profile, as facts: the system calls that it refuses to a container with
//! Docker's default capabilities.
//!
//! The facts are those of `moby/profiles/seccomp` v0.2.3 (May 2026). The profile is a list
//! of allowed calls, and everything else fails with `EPERM`. This module has the complement over
//! the calls that Linux defines up to [`LAST`], which is as exact and a sixth of the length. Calls
//! beyond it fail with `ENOSYS`, as runc arranges for calls that are newer than the profile.
//!
//! Capabilities change the list. The profile allows `pidfd_getfd`, `kcmp` and `process_madvise`
//! with `CAP_SYS_PTRACE`, and `mbind`, `set_mempolicy`, `get_mempolicy` and
//! `set_mempolicy_home_node` with `CAP_SYS_NICE`. It never allows `userfaultfd`, `io_uring_*`,
//! `move_pages`, `migrate_pages` and the calls of keys. It always allows `ptrace` and
//! `process_vm_*` (since Linux 4.8), `pidfd_open`, `memfd_create` and `memfd_secret`.
//!
//! Podman's profile (`containers/common`, 2024) allows `pidfd_getfd`, refuses `kcmp` and the calls
//! of NUMA in the same way, and answers `ENOSYS` to calls that it does not know. Kubernetes applies
//! the profile of its runtime only with `seccompProfile.type: RuntimeDefault`. That of containerd
//! has never allowed `pidfd_getfd` without `CAP_SYS_PTRACE`.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde_json::{Value, json};

/// The last system call that the profile knows (`removexattrat`).
const LAST: i64 = 466;

/// Numbers of `lsm_get_self_attr`, `lsm_set_self_attr` and `lsm_list_modules`, which the crate libc
/// does not name. They are the same on all architectures.
const LSM: [(&str, i64); 3] =
    [("lsm_get_self_attr", 459), ("lsm_set_self_attr", 460), ("lsm_list_modules", 461)];

/// Bits of `clone` that make namespaces. The profile refuses each of them.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Address families that `socket` refuses: `AF_ALG` and `AF_VSOCK`.
const FAMILIES: [i32; 2] = [libc::AF_ALG, libc::AF_VSOCK];

/// The values that `personality` accepts.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x20000, 0x20008, 0xffff_ffff];

/// Lists calls with their names, from the constants `SYS_*` of the crate libc.
macro_rules! calls {
    ($($constant:ident)*) => {
        [$((stringify!($constant).split_at(4).1, libc::$constant)),*]
    };
}

/// Returns the calls that fail with `EPERM` whatever their arguments are.
fn refused() -> Vec<(&'static str, i64)> {
    let mut calls = calls! {
        SYS_acct SYS_add_key SYS_bpf SYS_clock_settime SYS_delete_module SYS_fanotify_init
        SYS_finit_module SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_get_mempolicy
        SYS_init_module SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_kcmp
        SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_lookup_dcookie SYS_mbind
        SYS_migrate_pages SYS_mount SYS_mount_setattr SYS_move_mount SYS_move_pages
        SYS_nfsservctl SYS_open_by_handle_at SYS_open_tree SYS_perf_event_open SYS_pidfd_getfd
        SYS_pivot_root SYS_process_madvise SYS_quotactl SYS_quotactl_fd SYS_reboot
        SYS_request_key SYS_set_mempolicy SYS_set_mempolicy_home_node SYS_setdomainname
        SYS_sethostname SYS_setns SYS_settimeofday SYS_swapoff SYS_swapon SYS_syslog SYS_umount2
        SYS_unshare SYS_userfaultfd SYS_vhangup
    }
    .to_vec();
    calls.extend(LSM);
    #[cfg(target_arch = "x86_64")]
    calls.extend(calls! {
        SYS__sysctl SYS_afs_syscall SYS_getpmsg SYS_ioperm SYS_iopl SYS_putpmsg SYS_security
        SYS_sysfs SYS_tuxcall SYS_uselib SYS_ustat SYS_vserver
    });
    calls
}

/// Returns a rule that holds if `operator` holds for the lower half of each named argument.
fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> SeccompRule {
    let condition = |(argument, operator, value): &(u8, SeccompCmpOp, u64)| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value).unwrap()
    };
    SeccompRule::new(conditions.iter().map(condition).collect()).unwrap()
}

fn bits(flag: i32) -> u64 {
    u64::from(flag.cast_unsigned())
}

/// Returns the profile as two BPF programs in the form of `struct sock_filter`: what fails with
/// `EPERM`, and what fails with `ENOSYS`. A process installs both. A program of another ABI (x32,
/// 32 bits) is killed, where Docker applies the same list to it.
pub(crate) fn programs() -> [Vec<u8>; 2] {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        refused().into_iter().map(|(_, number)| (number, Vec::new())).collect();
    let clone = NAMESPACES.map(|flag| rule(&[(0, SeccompCmpOp::MaskedEq(bits(flag)), bits(flag))]));
    rules.insert(libc::SYS_clone, clone.to_vec());
    let socket = FAMILIES.map(|family| rule(&[(0, SeccompCmpOp::Eq, bits(family))]));
    rules.insert(libc::SYS_socket, socket.to_vec());
    let other = PERSONALITIES.map(|accepted| (0, SeccompCmpOp::Ne, accepted));
    rules.insert(libc::SYS_personality, vec![rule(&other)]);

    let missing = (LAST + 1..512).chain([libc::SYS_clone3]).map(|number| (number, Vec::new())).collect();
    [(rules, libc::EPERM), (missing, libc::ENOSYS)].map(|(rules, errno)| {
        let errno = SeccompAction::Errno(errno.cast_unsigned());
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, architecture).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        let bytes = |step: seccompiler::sock_filter| {
            let mut bytes = step.code.to_ne_bytes().to_vec();
            bytes.extend([step.jt, step.jf]);
            bytes.extend(step.k.to_ne_bytes());
            bytes
        };
        program.into_iter().flat_map(bytes).collect()
    })
}

/// Returns the profile as `linux.seccomp` of an OCI configuration. It has no rule for
/// `personality`: libseccomp has no "none of these values" for one argument.
pub(crate) fn oci() -> Value {
    let names: Vec<&str> = refused().into_iter().map(|(name, _)| name).collect();
    let mut calls = vec![
        json!({ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM }),
        json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS }),
    ];
    let mut with_argument = |name: &str, operator: &str, value: i32, second: i32| {
        calls.push(json!({
            "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM,
            "args": [{ "index": 0, "value": value, "valueTwo": second, "op": operator }],
        }));
    };
    for flag in NAMESPACES {
        with_argument("clone", "SCMP_CMP_MASKED_EQ", flag, flag);
    }
    for family in FAMILIES {
        with_argument("socket", "SCMP_CMP_EQ", family, 0);
    }
    json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls })
}
