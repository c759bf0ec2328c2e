//! MPI, where it is installed.

use std::process::{Command, Stdio};

/// Why MPI cannot build programs and start two processes here, if that is so.
#[must_use]
pub fn lacking() -> Option<String> {
    let runs = |program: &str, arguments: &[&str]| run(Command::new(program).args(arguments)).map(|_| ());
    let lacking = runs("mpicc", &["--version"]).and_then(|()| runs("mpirun", &["-n", "2", "true"]));
    lacking.err().map(|why| format!("no MPI (Debian: libopenmpi-dev): {why}"))
}

/// Runs a program of MPI to its end; what it said.
///
/// # Errors
/// What it said, if it failed.
pub fn run(command: &mut Command) -> Result<String, String> {
    // Open MPI wants to be told that this is a machine for tests.
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ] {
        command.env(name, value);
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    if output.status.success() { Ok(said) } else { Err(format!("{}: {}", output.status, said.trim())) }
}
