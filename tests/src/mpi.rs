//! Runs MPI programs, where MPI is installed.

use std::process::{Command, Stdio};

/// Returns why MPI cannot build programs and start two processes here, or `None` if it can.
#[must_use]
pub fn lacking() -> Option<String> {
    let runs = |program: &str, arguments: &[&str]| run(Command::new(program).args(arguments)).map(|_| ());
    let lacking = runs("mpicc", &["--version"]).and_then(|()| runs("mpirun", &["-n", "2", "true"]));
    lacking.err().map(|why| format!("no MPI (Debian: libopenmpi-dev): {why}"))
}

/// Runs an MPI program to its end and returns its output.
///
/// # Errors
/// The exit status and the output of a program that fails.
pub fn run(command: &mut Command) -> Result<String, String> {
    // Open MPI refuses root, and more ranks than processors, unless these are set.
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ] {
        command.env(name, value);
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    if output.status.success() { Ok(text) } else { Err(format!("{}: {}", output.status, text.trim())) }
}
