//! `libumf_proxy.so`, which is installed beside.

use std::collections::BTreeSet;
use std::process::Command;

use object::read::{Object as _, ObjectSymbol as _};

use crate::installed::installed;
use crate::programs::{With, compile};

const FUNCTIONS: [&str; 14] = [
    "aligned_alloc",
    "calloc",
    "free",
    "free_aligned_sized",
    "free_sized",
    "malloc",
    "malloc_trim",
    "malloc_usable_size",
    "memalign",
    "posix_memalign",
    "pvalloc",
    "realloc",
    "reallocarray",
    "valloc",
];

#[test]
fn it_exports_what_it_replaces() {
    let Some(installed) = installed("it_exports_what_it_replaces") else { return };
    let bytes = std::fs::read(installed.prefix.join("lib/libumf_proxy.so")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let names: BTreeSet<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert_eq!(names, BTreeSet::from(FUNCTIONS));
}

/// Two copies of umf in one process, one of which is the other's allocator.
#[test]
fn a_program_with_the_library_runs_with_it() {
    let Some(installed) = installed("a_program_with_the_library_runs_with_it") else { return };
    for name in ["loaded", "answers"] {
        let program = compile(installed, name, &With::default());
        let said = |preload: bool| {
            let mut command = Command::new("timeout");
            command.args(["-k", "5", "60"]).arg(&program).env_remove("UMF_LOG").env_remove("UMF_PROXY");
            command
                .env("LD_LIBRARY_PATH", installed.prefix.join("lib"))
                .env("UMF_LIBRARY", installed.library());
            if preload {
                command.env("LD_PRELOAD", installed.prefix.join("lib/libumf_proxy.so"));
            }
            let output = command.output().unwrap();
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{:?}\n{lines}", output.status);
            lines
        };
        assert_eq!(said(true), said(false), "{name}");
        std::fs::remove_file(program).unwrap();
    }
}
