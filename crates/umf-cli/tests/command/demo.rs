//! `umf demo`, run as users run it; and with ranks that are killed, stopped and orphaned.

// Clippy does not treat functions that tests share as tests.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);

fn umf(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
    // Settings of the host must not influence the test.
    command
        .args(arguments)
        .stdin(Stdio::null())
        .current_dir(std::env::temp_dir())
        .env("HOME", "/nonexistent");
    command
}

fn shared_memory() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Runs a demo that must succeed, and checks its report.
fn demo(arguments: &[&str]) -> Value {
    let arguments = [&["demo", "--json"], arguments].concat();
    let Output { status, stdout, stderr } = umf(&arguments).output().unwrap();
    assert!(status.success(), "{arguments:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    let outcome: Value = serde_json::from_slice(&stdout).unwrap();
    let (ranks, blocks) = (outcome["ranks"].as_u64().unwrap(), outcome["blocks"].as_u64().unwrap());
    assert_eq!(outcome["handles"], ranks * blocks);
    assert_eq!(outcome["opens"], ranks * (ranks - 1) * blocks);
    assert_eq!(outcome["stale_refused"], ranks * (ranks - 1));
    assert_eq!(outcome["left_behind"].as_array().unwrap().len(), 0);
    let per_rank = outcome["per_rank"].as_array().unwrap();
    assert_eq!(per_rank.len() as u64, ranks);
    let processes: BTreeSet<u64> = per_rank.iter().map(|rank| rank["process"].as_u64().unwrap()).collect();
    assert_eq!(processes.len() as u64, ranks, "ranks are processes of their own");
    for rank in per_rank {
        assert_eq!(rank["exported"], blocks);
        assert_eq!(rank["opened"], (ranks - 1) * blocks);
        assert!(rank["times"]["get_cached_ns"].as_f64().unwrap() > 0.0);
        assert_eq!(rank["times"]["open_first_ns"].is_null(), ranks == 1);
        assert_eq!(rank["importer"]["stale"], ranks - 1);
        assert_eq!(rank["before"]["children"].as_array().unwrap().len(), 0);
        let pid = rank["process"].as_u64().unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}/fd")).exists(), "rank {pid} is left");
    }
    outcome
}

#[test]
fn default_is_four_ranks() {
    let outcome = demo(&[]);
    assert_eq!((outcome["ranks"].as_u64(), outcome["blocks"].as_u64()), (Some(4), Some(64)));
    assert_eq!(outcome["size"], 65_536);
}

#[test]
fn all_exchange_modes_work() {
    for mode in ["pidfd", "procfs", "socket", "auto"] {
        let outcome = demo(&["--ranks", "3", "--blocks", "5", "--exchange", mode]);
        assert_eq!(outcome["exchange"], mode);
    }
}

#[test]
fn odd_sizes_and_counts_work() {
    for arguments in [
        ["--ranks", "1", "--blocks", "3", "--size", "100"],
        ["--ranks", "5", "--blocks", "4", "--size", "1"],
        ["--ranks", "3", "--blocks", "7", "--size", "3"],
        ["--ranks", "2", "--blocks", "1", "--size", "5MiB"],
        ["--ranks", "2", "--blocks", "6000", "--size", "4097"],
    ] {
        demo(&arguments);
    }
}

#[test]
fn cache_limits_are_obeyed() {
    let mut command = umf(&["demo", "--ranks", "3", "--blocks", "40", "--json"]);
    command.env("UMF_MAX_OPENED_IPC_HANDLES", "1").env("UMF_LOG", "level:debug;output:stdout");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    command.env("UMF_IPC_LIMIT", "hard");
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("their limit of 1 is reached") && stderr.contains("rank "), "{stderr}");
}

#[test]
fn table_fits_80_columns() {
    let output = umf(&["demo", "--ranks", "2", "--blocks", "2", "--size", "4KiB"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for part in
        ["2 unrelated processes", "4 handles of 256 bytes", "importer", "copy GB/s", "left behind: nothing"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn invalid_arguments_are_refused() {
    for (arguments, code, part) in [
        (["--size", "0"], 1, "at least 1 byte"),
        (["--size", "8000000TiB"], 1, "more than is available; pass smaller"),
        (["--size", "64KB"], 2, "not a unit of bytes"),
        (["--ranks", "0"], 2, "1..=1024"),
        (["--ranks", "99999999999"], 2, "1..=1024"),
        (["--blocks", "0"], 2, "1..=1000000"),
        (["--exchange", "pigeon"], 2, "pidfd"),
    ] {
        let output = umf(&[&["demo"], &arguments[..]].concat()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
    let output = umf(&["demo"]).env("UMF_IPC_LIMIT", "medium").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn closed_stdout_and_stderr_are_success() {
    let mut child = umf(&["demo", "--ranks", "2", "--blocks", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait().unwrap().success());
}

fn children(pid: u32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "{what} has not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a demo that takes seconds, and waits until its ranks exist.
fn long_demo(arguments: &[&str]) -> (Child, Vec<i32>) {
    let all = [&["demo", "--ranks", "4", "--blocks", "20000", "--size", "4096"], arguments].concat();
    let child = umf(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ranks = Vec::new();
    eventually("four ranks", || {
        ranks = children(child.id());
        ranks.len() == 4
    });
    (child, ranks)
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn assert_gone(ranks: &[i32]) {
    for pid in ranks {
        // A zombie has no mappings.
        eventually("the end of a rank", || {
            std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default().is_empty()
        });
    }
}

#[test]
fn killed_rank_fails_demo() {
    let before = shared_memory();
    for (victim, milliseconds) in [(0, 0), (1, 60), (2, 250), (3, 700)] {
        let (child, ranks) = long_demo(&["--exchange", "socket"]);
        std::thread::sleep(Duration::from_millis(milliseconds));
        signal(ranks[victim], rustix::process::Signal::KILL);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        // The killed rank fails, or a rank that could not reach it.
        assert!(stderr.contains("umf: rank "), "{stderr}");
        assert!(stderr.contains("signal: 9") || stderr.contains("is gone"), "{stderr}");
        assert_gone(&ranks);
    }
    // Names of other programs disappear on their own.
    eventually("an empty /dev/shm", || shared_memory().difference(&before).all(|name| !name.contains("umf")));
}

#[test]
fn stopped_rank_times_out() {
    let (child, ranks) = long_demo(&["--timeout", "3"]);
    signal(ranks[2], rustix::process::Signal::STOP);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("did not answer within 3 s, while "), "{stderr}");
    assert_gone(&ranks);
}

#[test]
fn ranks_do_not_outlive_killed_launcher() {
    let (mut child, ranks) = long_demo(&[]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_gone(&ranks);
}

/// Returns whether the error is that there is no libfabric, and prints it.
fn is_without_libfabric(test: &str, stderr: &str) -> bool {
    let lacks = stderr.contains("cannot open libfabric");
    if lacks {
        println!("umf-skip: {test}: {stderr}");
    }
    lacks
}

#[test]
fn remote_demo_reads_over_libfabric() {
    let mut cases = vec![(vec!["--size", "3MiB"], None), (vec!["--size", "1"], Some("127.0.0.1"))];
    if std::env::var_os("UMF_REMOTE_PROVIDER").is_some() {
        // It may have no addresses of IP.
        cases.truncate(1);
    }
    for (arguments, interface) in cases {
        let mut command = umf(&[&["demo", "--remote", "--json"], &arguments[..]].concat());
        command.env("UMF_REMOTE_TIMEOUT_MS", "20000");
        if let Some(interface) = interface {
            command.env("UMF_REMOTE_INTERFACE", interface);
        }
        let Output { status, stdout, stderr } = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        if is_without_libfabric("remote_demo_reads_over_libfabric", &stderr) {
            return;
        }
        assert!(status.success(), "{status}: {stderr}");
        let outcome: Value = serde_json::from_slice(&stdout).unwrap();
        assert_eq!(outcome["left_behind"].as_array().unwrap().len(), 0, "{outcome}");
        match outcome["network"].as_str().unwrap() {
            "namespaces" => assert!(outcome["no_namespaces"].is_null(), "{outcome}"),
            "loopback" => {
                println!("umf-skip: remote_demo_reads_over_libfabric: {}", outcome["no_namespaces"]);
            }
            network => assert_eq!(network, "settings"),
        }
        let sizes: Vec<u64> =
            outcome["reads"].as_array().unwrap().iter().map(|read| read["bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes.last(), outcome["size"].as_u64().as_ref(), "{outcome}");
        let address = outcome["address"].as_str().unwrap();
        assert!(interface.is_none_or(|interface| address.starts_with(interface)), "{outcome}");
    }
}

#[test]
fn remote_demo_without_namespaces_uses_loopback() {
    let script = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" demo --remote --size 100KiB";
    let mut command = Command::new("unshare");
    command.args(["-Ur", "sh", "-c", script, env!("CARGO_BIN_EXE_umf")]).stdin(Stdio::null());
    command.env_remove("UMF_REMOTE_INTERFACE").env_remove("UMF_REMOTE_PROVIDER");
    command.env("UMF_REMOTE_TIMEOUT_MS", "20000").env("HOME", "/nonexistent");
    const NAME: &str = "remote_demo_without_namespaces_uses_loopback";
    let Ok(Output { status, stdout, stderr }) = command.output() else {
        println!("umf-skip: {NAME}: there is no program unshare(1)");
        return;
    };
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if is_without_libfabric(NAME, &stderr) {
        return;
    }
    if !status.success() && stderr.contains("unshare: ") {
        println!("umf-skip: {NAME}: {stderr}");
        return;
    }
    assert!(status.success(), "{status}: {stderr}");
    for part in [
        "read over the loopback interface",
        "no namespaces: ",
        "freed: reads of the freed block refused as stale",
        "left behind: nothing",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
}

#[test]
fn remote_demo_ends_with_its_launcher_and_its_consumer() {
    for is_launcher in [true, false] {
        // Reading takes a second or more.
        let mut command = umf(&["demo", "--remote", "--size", "64MiB", "--timeout", "20"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let launcher = i32::try_from(child.id()).unwrap();
        let mut all = Vec::new();
        let (mut child, mut has_ended) = (child, false);
        eventually("a producer and a consumer", || {
            let producers = children(launcher.cast_unsigned());
            let consumer = producers.first().map(|&pid| children(pid.cast_unsigned())).unwrap_or_default();
            // Programs such as ip(8) are children of the producer for a moment.
            let is_umf = |pid: &i32| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.windows(6).any(|part| part == b"--rank"))
            };
            all = producers.iter().copied().chain(consumer.into_iter().filter(is_umf)).collect();
            has_ended = child.try_wait().unwrap().is_some();
            all.len() == 2 || has_ended
        });
        if has_ended {
            let output = child.wait_with_output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                is_without_libfabric("remote_demo_ends_with_its_launcher_and_its_consumer", &stderr),
                "{stderr}"
            );
            return;
        }
        signal(if is_launcher { launcher } else { all[1] }, rustix::process::Signal::KILL);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{stderr}");
        assert!(is_launcher || stderr.contains("the consumer (process "), "{stderr}");
        assert_gone(&all);
    }
}
