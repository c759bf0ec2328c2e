//! C programs of this folder.

use std::process::Command;

use crate::library::{compile, is_there, modes, run};

#[test]
fn the_functions_do_what_they_promise() {
    let test = "the_functions_do_what_they_promise";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "calls", folder.path()) else { return };
    for mode in modes(test) {
        let said = run(&mut Command::new(&program), Some(mode));
        assert_eq!(said.status, 0, "{mode}: {}\n{}", said.output, said.errors);
        assert!(
            said.output.ends_with("\n0 bad\n") && said.output.matches("ok ").count() > 20,
            "{}",
            said.output
        );
        // Of all that is wrong in it, one line says something.
        assert_eq!(said.errors.lines().count(), 1, "{}", said.errors);
        assert!(said.errors.starts_with("umf_proxy: free does nothing: address 0x"), "{}", said.errors);
    }
    let said = run(Command::new(&program).arg("threshold"), Some("size.threshold=200"));
    assert_eq!((said.status, said.errors.as_str()), (0, ""), "{}", said.output);
}

#[test]
fn threads_free_each_others_blocks_and_fork() {
    let test = "threads_free_each_others_blocks_and_fork";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "stress", folder.path()) else { return };
    let settings =
        modes(test).into_iter().chain(["size.threshold=64", "page.disposition=shared-fd;size.threshold=300"]);
    for settings in settings {
        let said = run(Command::new(&program).args(["1500", "4"]), Some(settings));
        assert_eq!(said.errors, "", "{settings}");
        assert_eq!((said.status, said.output.as_str()), (0, "0 wrong, 0 children failed\n"), "{settings}");
    }
}

/// Before there are threads, and before the program allocates anything.
#[test]
fn the_next_allocator_is_set_up_before_main() {
    let test = "the_next_allocator_is_set_up_before_main";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "first", folder.path()) else { return };
    for (settings, text) in [("size.threshold=64", "set up\n"), ("", "not set up\n")] {
        let said = run(&mut Command::new(&program), Some(settings));
        assert_eq!((said.status, said.output.as_str(), said.errors.as_str()), (0, text, ""), "{settings}");
    }
}

/// What came amid `malloc` may fork, in a process of one thread: nobody waits for what was interrupted.
#[test]
fn a_handler_of_signals_forks() {
    let test = "a_handler_of_signals_forks";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "handler", folder.path()) else { return };
    let said = run(&mut Command::new(&program), Some(""));
    assert_eq!(
        (said.status, said.output.as_str(), said.errors.as_str()),
        (0, "400 forks, 0 failed, 0 wrong\n", "")
    );
    // Shared memory cannot be copied while it is being allocated: then the child ends, and the parent goes on.
    let said = run(Command::new(&program).arg("few"), Some("page.disposition=shared-fd"));
    assert!(said.status == 0 && said.output.ends_with(" 0 wrong\n"), "{said:?}");
    let failed = said.errors.lines().filter(|line| line.contains("in the middle of an allocation")).count();
    assert!(said.output.contains(&format!(" {failed} failed,")), "{said:?}");
}

/// A fork amid a fork takes nothing from the one that it came amid: that one's child has its copy of shared memory.
#[test]
fn a_handler_of_signals_forks_amid_a_fork() {
    let test = "a_handler_of_signals_forks_amid_a_fork";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "amid_fork", folder.path()) else { return };
    for settings in ["", "page.disposition=shared-fd"] {
        let said = run(&mut Command::new(&program), Some(settings));
        assert!(
            said.status == 0 && said.output.ends_with(" 0 own failed, 0 wrong\n"),
            "{settings}: {said:?}"
        );
        // (Nothing is copied for the child of the handler while copies are being made.)
        let ended = said.errors.lines().filter(|line| line.contains("or of another fork")).count();
        assert!(said.output.starts_with(&format!("{ended} failed,")), "{settings}: {said:?}");
    }
}

#[test]
fn what_no_machine_has_is_null() {
    let test = "what_no_machine_has_is_null";
    if std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "1") {
        println!("umf-skip: {test}: vm.overcommit_memory is 1");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "lack", folder.path()) else { return };
    for mode in modes(test) {
        let said = run(Command::new(&program).arg("huge"), Some(mode));
        assert_eq!(said.output, "4 refused, small: 1\n", "{mode}: {said:?}");
    }
}

/// Where `/dev/shm` is small, what does not fit is refused. (To touch it would be a signal.)
#[test]
fn a_full_dev_shm_is_lack_of_memory() {
    let test = "a_full_dev_shm_is_lack_of_memory";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(test, "lack", folder.path()) else { return };
    let mounted = |then: &str| {
        let text = format!("mount -t tmpfs -o size=24m none /dev/shm && {then}");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &text]).arg("sh").arg(&program);
        command.arg(crate::library::library());
        command
    };
    if !is_there(test, "unshare") || run(&mut mounted("true"), None).status != 0 {
        println!("umf-skip: {test}: nothing can be mounted in a namespace of its own");
        return;
    }
    let text = "UMF_PROXY=page.disposition=shared-shm LD_PRELOAD=$2 \"$1\" full";
    let said = run(&mut mounted(text), None);
    let line = "some: 1, full: 1, wrong: 0\n";
    assert_eq!((said.status, said.output, said.errors), (0, line.repeat(2), String::new()));
}
