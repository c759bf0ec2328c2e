//! `umf info` about MPI: programs in the path that say what they are, or hang.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use super::info::{report, umf};

/// Returns the group "mpi" with these programs in the path: names, and scripts of the shell.
fn mpi(name: &str, programs: &[(&str, &str)], variables: &[(&str, &str)]) -> Value {
    let folder = std::env::temp_dir().join(format!("umf-info-mpi-{name}-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    for (program, script) in programs {
        let path = folder.join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = umf(&["info", "--json"]);
    for (variable, _) in std::env::vars() {
        if ["OMPI_", "MPIR_", "FI_"].iter().any(|prefix| variable.starts_with(prefix)) {
            command.env_remove(variable);
        }
    }
    command.env("PATH", &folder).envs(variables.iter().copied());
    let report = report(command);
    std::fs::remove_dir_all(&folder).unwrap();
    report["mpi"].clone()
}

/// The same once all programs have answered in time, which a busy machine may prevent.
fn answered(name: &str, programs: &[(&str, &str)], variables: &[(&str, &str)]) -> Value {
    const TRIES: usize = 20;
    for _ in 1..TRIES {
        let found = mpi(name, programs, variables);
        let is_unknown =
            |finding: &Value| finding["text"].as_str().is_some_and(|text| text.starts_with("unknown"));
        if !found.as_object().unwrap().values().any(is_unknown) {
            return found;
        }
    }
    mpi(name, programs, variables)
}

const MPIRUN: (&str, &str) = ("mpirun", "echo 'mpirun (Open MPI) 5.0.3'");
const MPICHVERSION: (&str, &str) =
    ("mpichversion", "echo 'MPICH Version: 5.0.2'; echo 'MPICH Device: ch4:ucx ofi'");

#[test]
fn mpi_libraries_are_found_and_directed() {
    let none = answered("none", &[], &[]);
    for (key, remedy) in [
        ("open-mpi", "openmpi-bin"),
        ("mpich", "`pip install mpich`"),
        ("libumf-fi.so", "`export FI_PROVIDER_PATH=$HOME/umf`"),
    ] {
        assert_eq!((&none[key]["state"], &none[key]["value"]), (&"missing".into(), &Value::Null), "{none}");
        assert!(none[key]["remedy"].as_str().unwrap().contains(remedy), "{none}");
    }
    let found = answered("found", &[MPIRUN, MPICHVERSION], &[("FI_PROVIDER", "umf")]);
    for (key, version, remedy) in [
        ("open-mpi", "5.0.3", "OMPI_MCA_mtl_ofi_provider_include=umf"),
        ("mpich", "5.0.2", "`export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1`"),
    ] {
        assert_eq!(found[key]["state"], "limited", "{found}");
        assert_eq!(found[key]["value"]["version"], version, "{found}");
        assert_eq!(found[key]["value"]["directed_to_umf"], false, "{found}");
        assert!(found[key]["remedy"].as_str().unwrap().contains(remedy), "{found}");
    }
    let variables = [
        ("OMPI_MCA_pml", "cm"),
        ("OMPI_MCA_mtl", "ofi"),
        ("OMPI_MCA_osc", "pt2pt"),
        ("OMPI_MCA_btl", "self"),
        ("OMPI_MCA_mtl_ofi_provider_include", "umf"),
        ("MPIR_CVAR_CH4_NETMOD", "ofi"),
        ("MPIR_CVAR_NOLOCAL", "1"),
        ("FI_PROVIDER", "umf"),
    ];
    let directed = answered("directed", &[MPIRUN, MPICHVERSION], &variables);
    for key in ["open-mpi", "mpich"] {
        assert_eq!(directed[key]["state"], "ok", "{directed}");
    }
    // Each without libfabric: another `mpirun` than Open MPI's is none.
    let device = ("mpichversion", "echo 'MPICH Version: 4.0.2'; echo 'MPICH Device: ch4:ucx'");
    let without =
        answered("without", &[MPIRUN, ("ompi_info", "echo 'mca:mtl:psm:version'"), device], &variables);
    for key in ["open-mpi", "mpich"] {
        assert_eq!(without[key]["state"], "missing", "{without}");
        assert!(without[key]["text"].as_str().unwrap().contains("without libfabric"), "{without}");
    }
    let other = answered("other", &[("mpirun", "echo HYDRA build details:")], &variables);
    assert_eq!(other["open-mpi"]["text"], "not found");
}

#[test]
fn programs_of_mpi_that_hang_are_killed() {
    // A program that a killed script has started has its output open, and is killed as well.
    let sleep = "/bin/sleep 77777 & echo; wait";
    let found = mpi("hang", &[("mpirun", sleep), ("mpichversion", "while :; do echo; done")], &[]);
    assert_eq!(found["open-mpi"]["state"], "limited", "{found}");
    assert!(found["open-mpi"]["text"].as_str().unwrap().contains("did not answer within 2 s"), "{found}");
    assert_eq!(found["mpich"]["text"], "not found", "endless output is cut");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let left = |path: PathBuf| {
        std::fs::read(path.join("cmdline")).is_ok_and(|line| line == b"/bin/sleep\x0077777\0")
    };
    assert!(!processes.map(|entry| entry.path()).any(left), "a program was left");
}
