//! The C examples compile without warnings, against the installed headers, and run.

use std::path::Path;
use std::process::Command;

use crate::devices::{cuda, level_zero};
use crate::installed::{compiler, installed};
use crate::programs::{With, has, said, start};

/// Compiles and runs an example, as its comment says. Returns its lines; `None` without a compiler.
fn example(test: &str, name: &str, with: &With) -> Option<Vec<String>> {
    let installed = installed(test)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.c"));
    let program = installed.prefix.join(format!("example-{name}-{}", with.libraries.is_some()));
    let mut compile = Command::new(compiler());
    compile.args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-o"]).arg(&program).arg(source).arg("-I");
    compile.arg(installed.prefix.join("include")).arg("-L").arg(installed.prefix.join("lib"));
    let output = compile.args(["-lumf", "-ldl"]).args(&with.flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = start(installed, &program, &[], with);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{:?}\n{error}", output.status, said(&output));
    std::fs::remove_file(program).unwrap();
    Some(said(&output))
}

#[test]
fn example_shares_a_block_between_two_processes() {
    let test = "example_shares_a_block_between_two_processes";
    let Some(lines) = example(test, "share", &With::default()) else { return };
    assert_eq!(lines, ["consumer reads: hello from the producer", "producer reads: hello from the consumer"]);
}

#[test]
fn example_uses_memory_of_a_device() {
    let test = "example_uses_memory_of_a_device";
    let Some(with) = cuda(test) else { return };
    let Some(lines) = example(test, "device", &with) else { return };
    has(&lines, "the device has: hello, device");
    let Some(lines) = example(test, "device", &With::default()) else { return };
    // Of the machine's driver, if it has one.
    let is_expected = |line: &String| line.starts_with("no CUDA d") || line.starts_with("the device has: ");
    assert!(lines.len() == 1 && lines.iter().all(is_expected), "{lines:#?}");
}

#[test]
fn example_shares_memory_of_a_device_between_two_processes() {
    let test = "example_shares_memory_of_a_device_between_two_processes";
    let expected = ["consumer reads: hello from the producer", "producer reads: hello from the consumer"];
    for handles in ["classic", "opaque"] {
        let Some(mut with) = level_zero(test, handles) else { return };
        let Some(lines) = example(test, "level_zero", &with) else { return };
        assert_eq!(lines, expected, "{handles}");
        with.variables.clear();
        let Some(lines) = example(test, "level_zero", &with) else { return };
        // Of the machine's driver, if it has one.
        assert!(
            lines == expected || lines.len() == 1 && lines[0].starts_with("no Level Zero d"),
            "{lines:#?}"
        );
    }
}
