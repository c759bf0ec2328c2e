//! `umf info`, run as users run it: under limits, as another user, under seccomp filters, and
//! killed.

// Clippy does not treat functions that tests share as tests.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const UNPRIVILEGED_UID: u32 = 65_534;
const GROUPS: [&str; 10] =
    ["kernel", "permissions", "transfer", "limits", "huge_pages", "numa", "devices", "mpi", "fabrics", "cpu"];

fn program(path: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn umf(arguments: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_umf"), arguments)
}

/// Copies the command to a folder that every user can reach, with the given permissions.
fn copy_of_umf(name: &str, mode: u32) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("umf-info-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.join("umf");
    std::fs::copy(env!("CARGO_BIN_EXE_umf"), &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn remove_copy(path: &std::path::Path) {
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a command that must succeed and print nothing to standard error.
fn run(mut command: Command) -> String {
    let Output { status, stdout, stderr } = loop {
        match command.output() {
            // Another thread's child holds the new copy open for writing until it calls exec.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

/// The trial of the directory mode has a folder of its own, and leaves none.
#[test]
fn temporary_folder_is_private_and_removed() {
    let folder = std::env::temp_dir().join(format!("umf-info-private-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    // Another process has made what a process could take for its own, by its pid.
    let script = "mkdir \"$TMPDIR/umf-info-$$\" && echo kept > \"$TMPDIR/umf-info-$$/file\" && exec \"$0\" info --json";
    let mut command = program("/bin/sh", &["-c", script, env!("CARGO_BIN_EXE_umf")]);
    command.env("TMPDIR", &folder).env_remove("UMF_IPC_DIR");
    let report = report(command);
    assert_eq!(report["transfer"]["directory"]["value"], true, "{}", report["transfer"]["directory"]);
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(std::fs::read_to_string(left[0].join("file")).unwrap(), "kept\n");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs `umf info --json` and checks the form of its report.
pub(crate) fn report(command: Command) -> Value {
    let report: Value = serde_json::from_str(&run(command)).unwrap();
    assert_eq!(report["format"], 1);
    for group in GROUPS {
        let findings = report[group].as_object().unwrap();
        assert!(!findings.is_empty(), "{group} is empty");
        for (key, finding) in findings {
            let state = finding["state"].as_str().unwrap();
            assert!(["ok", "limited", "missing"].contains(&state), "{key}: {state}");
            assert!(!finding["text"].as_str().unwrap().is_empty(), "{key} has no text");
            assert!(!finding["why"].as_str().unwrap().is_empty(), "{key} does not say why");
            assert!(finding.get("value").is_some(), "{key} has no value");
            assert_eq!(finding["remedy"].is_null(), state == "ok", "{key} is {state}: {}", finding["remedy"]);
        }
    }
    report
}

/// Sets a soft and hard limit in the child before `exec`.
fn limit(command: &mut Command, resource: rustix::process::Resource, to: u64) {
    let limit = rustix::process::Rlimit { current: Some(to), maximum: Some(to) };
    // SAFETY: the closure only calls `setrlimit`, which is async-signal-safe.
    unsafe { command.pre_exec(move || Ok(rustix::process::setrlimit(resource, limit)?)) };
}

/// Installs a seccomp filter in the child that answers system call `number` with `action`.
fn filter(command: &mut Command, number: libc::c_long, action: u32) {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        // The first word of `seccomp_data` is the number of the call.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::try_from(number).unwrap()),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let filter = libc::sock_fprog { len: 4, filter: program.as_ptr().cast_mut() };
        // SAFETY: `program` outlives the call, which copies it.
        let rc = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
        };
        if rc == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(install) };
}

#[test]
fn text_without_terminal_is_narrow_and_plain() {
    for arguments in [&["info"][..], &["info", "--verbose"]] {
        let text = run(umf(arguments));
        assert!(!text.contains('\x1b'), "colour without a terminal");
        for line in text.lines() {
            // A command to copy is in one line, however long.
            let unbreakable = line.split_whitespace().count() <= 1 || line.contains('`');
            assert!(line.matches('`').count() % 2 == 0, "a broken command: {line}");
            assert!(line.chars().count() <= 80 || unbreakable, "too long: {line}");
            assert_eq!(line, line.trim_end());
        }
        assert!(text.lines().last().unwrap().contains(" ok, "));
    }
}

#[test]
fn text_and_json_have_same_findings() {
    let report = report(umf(&["info", "--json"]));
    let keys: BTreeSet<String> =
        GROUPS.iter().flat_map(|group| report[group].as_object().unwrap().keys().cloned()).collect();
    let shown: BTreeSet<String> = run(umf(&["info"]))
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("  ")?.split_whitespace();
            ["ok", "limited", "missing"].contains(&words.next()?).then(|| words.next())?.map(str::to_owned)
        })
        .collect();
    assert_eq!(keys, shown);
}

#[test]
fn auto_is_first_working_mode() {
    let report = report(umf(&["info", "--json"]));
    let transfer = &report["transfer"];
    let first = ["pidfd", "procfs", "socket"].into_iter().find(|mode| transfer[mode]["value"] == true);
    assert_eq!(transfer["auto"]["value"].as_str(), first);
}

#[test]
fn low_file_limit_is_reported() {
    // Below four, the dynamic loader cannot open a library.
    for files in 4..=20 {
        let mut command = umf(&["info", "--json"]);
        limit(&mut command, rustix::process::Resource::Nofile, files);
        let report = report(command);
        assert_eq!(report["limits"]["rlimit_nofile"]["state"], "limited");
        assert_eq!(report["limits"]["rlimit_nofile"]["value"]["soft"], files);
    }
}

#[test]
fn low_address_space_limit_is_reported() {
    let mut command = umf(&["info", "--json"]);
    limit(&mut command, rustix::process::Resource::As, 64 << 20);
    let report = report(command);
    let limit = &report["limits"]["rlimit_as"];
    assert_eq!(limit["state"], "limited");
    let text = limit["text"].as_str().unwrap();
    assert_eq!(text, "64 MiB of address space (ulimit -v, RLIMIT_AS)");
    // The hard limit is as low: this process cannot raise it.
    let remedy = limit["remedy"].as_str().unwrap();
    assert!(remedy.contains("limits.conf") && !remedy.contains("`ulimit"), "{remedy}");
}

#[test]
fn soft_limit_is_raised_by_command_that_works() {
    let mut command = umf(&["info", "--json"]);
    let limit = rustix::process::Rlimit { current: Some(1 << 30), maximum: Some(3 << 30) };
    // SAFETY: the closure only calls `setrlimit`, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || Ok(rustix::process::setrlimit(rustix::process::Resource::As, limit)?))
    };
    let report = report(command);
    let remedy = report["limits"]["rlimit_as"]["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("Run `ulimit -Sv 3145728` "), "{remedy}");
}

#[test]
fn refused_memfd_create_has_remedy() {
    for (action, text) in [
        (libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap(), "refused (EPERM)"),
        (libc::SECCOMP_RET_ERRNO | u32::try_from(libc::ENOSYS).unwrap(), "not there (ENOSYS)"),
        (libc::SECCOMP_RET_KILL_PROCESS, "killed (SIGSYS)"),
    ] {
        let mut command = umf(&["info", "--json"]);
        filter(&mut command, libc::SYS_memfd_create, action);
        let report = report(command);
        assert_eq!(report["kernel"]["memfd_seals"]["text"], text);
        for (group, key) in [("kernel", "memfd_seals"), ("transfer", "pidfd"), ("transfer", "auto")] {
            let remedy = report[group][key]["remedy"].as_str().unwrap();
            assert!(remedy.contains("memfd_create"), "{key}: {remedy}");
            assert!(remedy.contains("--security-opt seccomp="), "{key}: {remedy}");
        }
    }
}

/// Returns the texts between double quotes of a source file, without its tests.
fn literals(source: &str) -> Vec<&str> {
    let source = source.split("#[cfg(test)]").next().unwrap();
    source.split('"').skip(1).step_by(2).collect()
}

#[test]
fn settings_in_remedies_exist() {
    let template = run(umf(&["config", "--template"]));
    let mut variables = BTreeSet::new();
    let mut section = String::new();
    for line in template.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            section = name.replace(['.', '-'], "_").to_uppercase();
        } else if let Some((key, _)) = line.strip_prefix('#').and_then(|line| line.split_once(" = ")) {
            variables.insert(format!("UMF_{section}_{}", key.to_uppercase()));
            variables.insert(key.to_owned());
        }
        let words = line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        variables.extend(words.filter(|word| word.starts_with("UMF_")).map(str::to_owned));
    }
    let sources = [
        include_str!("../../src/info/devices.rs"),
        include_str!("../../src/info/finding.rs"),
        include_str!("../../src/info/kernel.rs"),
        include_str!("../../src/info/limits.rs"),
        include_str!("../../src/info/fabrics.rs"),
        include_str!("../../src/info/mpi.rs"),
        include_str!("../../src/info/numa.rs"),
        include_str!("../../src/info/procfs.rs"),
        include_str!("../../src/info/transfer.rs"),
        include_str!("../../../umf-ipc/src/error.rs"),
        include_str!("../../../umf-ipc/src/transfer/channel/mod.rs"),
        include_str!("../../../umf-ipc/src/transfer/channel/sockets.rs"),
        include_str!("../../../umf-ipc/src/transfer/diagnosis.rs"),
    ];
    let mut found = 0;
    for text in sources.into_iter().flat_map(literals) {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for variable in words.filter(|word| word.starts_with("UMF_")) {
            assert!(variables.contains(variable), "{variable}, which is no setting, in {text:?}");
            found += 1;
        }
        // A key of the settings file is alone between backticks, or with its value.
        for command in text.split('`').skip(1).step_by(2) {
            let key = command.split(" = ").next().unwrap();
            if key.contains('_') && key.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_') {
                assert!(variables.contains(key), "{key}, which is no setting, in {text:?}");
                found += 1;
            }
        }
    }
    assert!(found >= 10, "{found} settings were found");
}

#[test]
fn unprivileged_user_gets_own_findings() {
    if !is_root() {
        println!("umf-skip: umf info: becoming another user takes root");
        return;
    }
    let path = copy_of_umf("unprivileged", 0o755);
    let mut command = program(&path, &["info", "--json"]);
    command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    let report = report(command);
    remove_copy(&path);
    assert_eq!(report["permissions"]["euid"]["value"], UNPRIVILEGED_UID);
    assert_eq!(report["permissions"]["cap_sys_ptrace"]["value"], false);
    // Yama does not restrict files of the same user.
    assert_eq!(report["transfer"]["procfs"]["value"], true);
}

#[test]
fn non_dumpable_process_uses_sockets() {
    if !is_root() {
        println!(
            "umf-skip: umf info: a program that its user may run but not read takes another user, hence root"
        );
        return;
    }
    let path = copy_of_umf("undumpable", 0o711);
    let mut command = program(&path, &["info", "--json"]);
    command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    let report = report(command);
    remove_copy(&path);
    assert_eq!(report["permissions"]["dumpable"]["value"], false);
    let transfer = &report["transfer"];
    assert_eq!(transfer["pidfd"]["value"], false);
    assert_eq!(transfer["procfs"]["value"], false);
    assert_eq!(transfer["process_vm"]["value"], false);
    assert_eq!(transfer["auto"]["value"], "socket");
    let text = transfer["auto"]["text"].as_str().unwrap();
    // The text is the library's.
    assert!(text.starts_with("socket, since pidfd is refused (Operation not permitted"), "{text}");
    assert!(text.contains("not dumpable") && text.contains("), procfs is refused ("), "{text}");
    assert_eq!(transfer["auto"]["state"], "limited");
}

#[test]
fn user_namespace_is_reported() {
    let mut command = umf(&["info", "--json"]);
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWUSER) {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        })
    };
    if let Err(error) = command.output() {
        println!("umf-skip: umf info: no new user namespace here: {error}");
        return;
    }
    let report = report(command);
    assert_eq!(report["permissions"]["user_namespace"]["value"]["initial"], false);
    assert!(!report["limits"]["rlimit_memlock"]["text"].as_str().unwrap().contains("lifted"));
}

/// Mounts empty folders over `/proc` and `/sys` in the child.
fn hide_proc_and_sys(command: &mut Command) {
    // SAFETY: the closure only makes system calls, and mounts in a namespace of the child.
    unsafe {
        command.pre_exec(|| {
            let mount = |on: &std::ffi::CStr, flags| {
                libc::mount(c"none".as_ptr(), on.as_ptr(), c"tmpfs".as_ptr(), flags, std::ptr::null()) == 0
            };
            let hidden = libc::unshare(libc::CLONE_NEWNS) == 0
                && mount(c"/", libc::MS_REC | libc::MS_PRIVATE)
                && mount(c"/proc", libc::MS_RDONLY)
                && mount(c"/sys", libc::MS_RDONLY);
            if hidden { Ok(()) } else { Err(Error::last_os_error()) }
        })
    };
}

#[test]
fn demo_without_proc_says_so() {
    if !is_root() {
        println!("umf-skip: umf demo: hiding /proc takes root");
        return;
    }
    let mut command = umf(&["demo", "--ranks", "2", "--blocks", "1"]);
    hide_proc_and_sys(&mut command);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("umf-skip: umf demo: /proc cannot be hidden here: {error}");
            return;
        }
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("/proc is not mounted; run `mount -t proc proc /proc`"), "{stderr}");
}

#[test]
fn missing_proc_and_sys_are_reported() {
    if !is_root() {
        println!("umf-skip: umf info: hiding /proc takes root");
        return;
    }
    let mut command = umf(&["info", "--json"]);
    hide_proc_and_sys(&mut command);
    if let Err(error) = command.output() {
        println!("umf-skip: umf info: /proc cannot be hidden here: {error}");
        return;
    }
    let report = report(command);
    assert_eq!(report["transfer"]["auto"]["state"], "limited");
    let remedy = report["transfer"]["auto"]["remedy"].as_str().unwrap();
    assert!(remedy.contains("`mount -t proc proc /proc`"), "{remedy}");
    assert_eq!(report["limits"]["max_map_count"]["state"], "limited");
    assert!(report["permissions"]["yama_ptrace_scope"]["text"].as_str().unwrap().starts_with("unknown"));
    assert_eq!(report["kernel"]["pidfd_getfd"]["value"], true);
}

#[test]
fn low_process_limit_is_reported() {
    if !is_root() {
        println!("umf-skip: umf info: a user without other processes takes root to become");
        return;
    }
    let path = copy_of_umf("alone", 0o755);
    let mut command = program(&path, &["info", "--json"]);
    command.uid(UNPRIVILEGED_UID - 7).gid(UNPRIVILEGED_UID - 7);
    limit(&mut command, rustix::process::Resource::Nproc, 1);
    let report = report(command);
    remove_copy(&path);
    for mode in ["pidfd", "procfs", "socket", "process_vm", "auto"] {
        assert_eq!(report["transfer"][mode]["state"], "limited", "{}", report["transfer"][mode]);
        assert!(report["transfer"][mode]["value"].is_null());
    }
}

#[test]
fn seccomp_eperm_on_pidfd_getfd_selects_procfs() {
    let mut command = umf(&["info", "--json"]);
    filter(
        &mut command,
        libc::SYS_pidfd_getfd,
        libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap(),
    );
    let report = report(command);
    assert_eq!(report["kernel"]["seccomp"]["value"], "filter");
    assert_eq!(report["kernel"]["pidfd_getfd"]["text"], "refused (EPERM)");
    assert_eq!(report["kernel"]["pidfd_open"]["value"], true);
    assert_eq!(report["transfer"]["pidfd"]["value"], false);
    let auto = &report["transfer"]["auto"];
    assert_eq!((&auto["state"], &auto["value"]), (&"limited".into(), &"procfs".into()));
    // Selected mode, its memory, and why the better mode is not used.
    let text = auto["text"].as_str().unwrap();
    assert!(text.starts_with("procfs, and socket for dma-buf, since pidfd is refused (Operation"), "{text}");
    assert!(auto["remedy"].as_str().unwrap().starts_with("Make pidfd work"), "{auto}");
    let pidfd = report["transfer"]["pidfd"]["remedy"].as_str().unwrap();
    assert!(pidfd.contains("seccomp profile"), "{pidfd}");
}

#[test]
fn seccomp_enosys_is_reported_as_missing() {
    let mut command = umf(&["info", "--json"]);
    filter(
        &mut command,
        libc::SYS_pidfd_open,
        libc::SECCOMP_RET_ERRNO | u32::try_from(libc::ENOSYS).unwrap(),
    );
    let report = report(command);
    assert_eq!(report["kernel"]["pidfd_open"]["state"], "missing");
    assert_eq!(report["transfer"]["auto"]["value"], "procfs");
}

#[test]
fn seccomp_kill_ends_child_only() {
    for (call, group, key) in [
        (libc::SYS_membarrier, "kernel", "membarrier"),
        (libc::SYS_mbind, "numa", "mbind"),
        (libc::SYS_pidfd_getfd, "transfer", "pidfd"),
        (libc::SYS_process_vm_readv, "transfer", "process_vm"),
    ] {
        let mut command = umf(&["info", "--json"]);
        filter(&mut command, call, libc::SECCOMP_RET_KILL_PROCESS);
        let report = report(command);
        assert_eq!(report[group][key]["state"], "missing", "{}", report[group][key]);
        assert!(report[group][key]["text"].as_str().unwrap().contains("killed"));
        assert_eq!(report["kernel"]["pidfd_open"]["value"], true);
    }
}

#[test]
fn closed_pipe_is_success() {
    for arguments in [&["info"][..], &["info", "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = umf(arguments);
        command.stdout(writer);
        run(command);
    }
}

#[test]
fn closed_stdout_is_success() {
    let mut command = umf(&["info"]);
    // SAFETY: the closure makes one system call, on a descriptor of the child.
    unsafe {
        command.pre_exec(|| {
            libc::close(1);
            Ok(())
        })
    };
    assert_eq!(run(command), "");
}

#[test]
fn full_disk_is_error() {
    let mut command = umf(&["info"]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let Output { status, stderr, .. } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("umf: ") && stderr.lines().count() == 1, "{stderr}");
}

/// Returns whether the process group has members. Reaps its orphans.
fn has_members(group: u32) -> bool {
    let group = libc::pid_t::try_from(group).unwrap();
    // SAFETY: waits only for members of this group, whose leader is gone; signal 0 only tests.
    unsafe {
        while libc::waitpid(-group, std::ptr::null_mut(), libc::WNOHANG) > 0 {}
        libc::kill(-group, 0) == 0
    }
}

#[test]
fn no_child_outlives_info() {
    let mut child = umf(&["info"]).process_group(0).stdout(Stdio::null()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!has_members(child.id()));
}

#[test]
fn no_child_outlives_killed_info() {
    // Orphans become children of this process: not every init reaps them at once.
    // SAFETY: sets an attribute of this process, and touches no memory.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    // A killed process leaves its folder for sockets.
    let folder = std::env::temp_dir().join(format!("umf-info-killed-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    for step in 0..24 {
        let mut command = umf(&["info"]);
        command.env("TMPDIR", &folder).process_group(0).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_micros(500 * step));
        child.kill().unwrap();
        child.wait().unwrap();
        // The children are killed by a signal, or exit when the channel closes.
        let deadline = Instant::now() + Duration::from_secs(4);
        while has_members(child.id()) {
            assert!(Instant::now() < deadline, "a child outlived step {step}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn stopped_child_times_out() {
    let begun = Instant::now();
    let mut child = umf(&["info", "--json"])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stopped = 0;
    while child.try_wait().unwrap().is_none() && stopped == 0 && begun.elapsed() < Duration::from_secs(1) {
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let Ok(children) = std::fs::read_to_string(children) else { break };
        for pid in children.split_whitespace() {
            // A child that is stopped before its exec also stops its parent (vfork(2)).
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if line.contains("--child") {
                // SAFETY: signals a child of the command that this test started.
                stopped += i32::from(unsafe { libc::kill(pid.parse().unwrap(), libc::SIGSTOP) } == 0);
            }
        }
    }
    if stopped == 0 {
        println!("nothing was stopped: the trial was over too soon, or the kernel does not list children");
    }
    let group = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(6), "took {:?}", begun.elapsed());
    assert!(!has_members(group));
}

#[test]
fn invalid_child_request_is_refused() {
    for order in ["nonsense\n", "{\"Read\":1}\n", "{\"Try\":\"nothing\"}\n"] {
        let (mut channel, child) = UnixStream::pair().unwrap();
        channel.write_all(order.as_bytes()).unwrap();
        let output = umf(&["info", "--child"]).stdin(OwnedFd::from(child)).output().unwrap();
        assert!(!output.status.success());
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    }
}
