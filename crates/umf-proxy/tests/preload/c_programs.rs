//! C programs of this folder.

use std::process::Command;

use crate::library::{compile, modes, run};

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
