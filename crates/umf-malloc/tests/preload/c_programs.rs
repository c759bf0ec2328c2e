//! The C programs in `tests/c`.

use std::process::Command;

use crate::library::{compile, is_installed, modes, run};

#[test]
fn functions_behave_as_documented() {
    let test = "functions_behave_as_documented";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "calls", folder.path()) else { return };
    for mode in modes(test) {
        let outcome = run(&mut Command::new(&program), Some(mode));
        assert_eq!(outcome.status, 0, "{mode}: {}\n{}", outcome.output, outcome.errors);
        assert!(
            outcome.output.ends_with("\n0 bad\n") && outcome.output.matches("ok ").count() > 20,
            "{}",
            outcome.output
        );
        // The program frees several invalid addresses; the library reports the first one only.
        assert_eq!(outcome.errors.lines().count(), 1, "{}", outcome.errors);
        assert!(outcome.errors.starts_with("umf_proxy: free does nothing: address 0x"), "{}", outcome.errors);
    }
    let outcome = run(Command::new(&program).arg("threshold"), Some("size.threshold=200"));
    assert_eq!((outcome.status, outcome.errors.as_str()), (0, ""), "{}", outcome.output);
}

#[test]
fn threads_free_each_others_blocks_and_fork() {
    let test = "threads_free_each_others_blocks_and_fork";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "stress", folder.path()) else { return };
    let settings =
        modes(test).into_iter().chain(["size.threshold=64", "page.disposition=shared-fd;size.threshold=300"]);
    for settings in settings {
        let outcome = run(Command::new(&program).args(["1500", "4"]), Some(settings));
        assert_eq!(outcome.errors, "", "{settings}");
        assert_eq!(
            (outcome.status, outcome.output.as_str()),
            (0, "0 wrong, 0 children failed\n"),
            "{settings}"
        );
    }
}

/// The first allocation from the next allocator comes before the first thread, and before `main`.
#[test]
fn next_allocator_is_initialised_before_main() {
    let test = "next_allocator_is_initialised_before_main";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "first", folder.path()) else { return };
    for (settings, text) in [("size.threshold=64", "set up\n"), ("", "not set up\n")] {
        let outcome = run(&mut Command::new(&program), Some(settings));
        assert_eq!(
            (outcome.status, outcome.output.as_str(), outcome.errors.as_str()),
            (0, text, ""),
            "{settings}"
        );
    }
}

/// A signal handler that interrupts `malloc` may fork, in a process of one thread: the child does
/// not wait for the interrupted code.
#[test]
fn signal_handler_that_interrupts_malloc_can_fork() {
    let test = "signal_handler_that_interrupts_malloc_can_fork";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "handler", folder.path()) else { return };
    let outcome = run(&mut Command::new(&program), Some(""));
    assert_eq!(
        (outcome.status, outcome.output.as_str(), outcome.errors.as_str()),
        (0, "400 forks, 0 failed, 0 wrong\n", "")
    );
    // Shared memory cannot be copied while it is being allocated: then the child ends, and the
    // parent goes on.
    let outcome = run(Command::new(&program).arg("few"), Some("page.disposition=shared-fd"));
    assert!(outcome.status == 0 && outcome.output.ends_with(" 0 wrong\n"), "{outcome:?}");
    let failed =
        outcome.errors.lines().filter(|line| line.contains("in the middle of an allocation")).count();
    assert!(outcome.output.contains(&format!(" {failed} failed,")), "{outcome:?}");
}

/// A fork inside a fork does not disturb the outer one, whose child gets its copy of shared memory.
#[test]
fn signal_handler_that_interrupts_fork_can_fork() {
    let test = "signal_handler_that_interrupts_fork_can_fork";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "amid_fork", folder.path()) else { return };
    for settings in ["", "page.disposition=shared-fd"] {
        let outcome = run(&mut Command::new(&program), Some(settings));
        assert!(
            outcome.status == 0 && outcome.output.ends_with(" 0 own failed, 0 wrong\n"),
            "{settings}: {outcome:?}"
        );
        // While copies are being made, none are made for the child of the handler.
        let ended = outcome.errors.lines().filter(|line| line.contains("or of another fork")).count();
        assert!(outcome.output.starts_with(&format!("{ended} failed,")), "{settings}: {outcome:?}");
    }
}

#[test]
fn impossible_sizes_return_null() {
    let test = "impossible_sizes_return_null";
    if std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "1") {
        println!("umf-skip: {test}: vm.overcommit_memory is 1");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "lack", folder.path()) else { return };
    for mode in modes(test) {
        let outcome = run(Command::new(&program).arg("huge"), Some(mode));
        assert_eq!(outcome.output, "4 refused, small: 1\n", "{mode}: {outcome:?}");
    }
}

/// If `/dev/shm` is too small, the allocation fails; otherwise touching the block would raise
/// `SIGBUS`.
#[test]
fn full_dev_shm_is_out_of_memory() {
    let test = "full_dev_shm_is_out_of_memory";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "lack", folder.path()) else { return };
    let mounted = |then: &str| {
        let text = format!("mount -t tmpfs -o size=24m none /dev/shm && {then}");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &text]).arg("sh").arg(&program);
        command.arg(crate::library::library());
        command
    };
    if !is_installed(test, "unshare") || run(&mut mounted("true"), None).status != 0 {
        println!("umf-skip: {test}: nothing can be mounted in a namespace of its own");
        return;
    }
    let text = "UMF_PROXY=page.disposition=shared-shm LD_PRELOAD=$2 \"$1\" full";
    let outcome = run(&mut mounted(text), None);
    let line = "some: 1, full: 1, wrong: 0\n";
    assert_eq!((outcome.status, outcome.output, outcome.errors), (0, line.repeat(2), String::new()));
}
