//! `libumf_proxy.so`, which is installed beside the library.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use object::elf;
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _};
use object::read::{Object as _, ObjectSymbol as _};

use crate::installed::{Installed, installed};
use crate::programs::{With, compile};

const NAMES: [&str; 15] = [
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
    // The table of the heap for libumf.so.1.
    "umf_proxy_heap_2",
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
    assert_eq!(names, BTreeSet::from(NAMES));
}

/// The library owns live blocks, and libumf.so.1 keeps the address of its heap.
#[test]
fn it_is_never_unloaded() {
    let Some(installed) = installed("it_is_never_unloaded") else { return };
    let bytes = std::fs::read(installed.prefix.join("lib/libumf_proxy.so")).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let (endian, bytes) = (file.endian(), &*bytes);
    let sections = file.elf_header().sections(endian, bytes).unwrap();
    let (entries, _) = sections.dynamic(endian, bytes).unwrap().unwrap();
    let flags = entries.iter().find(|entry| entry.d_tag(endian) == elf::DT_FLAGS_1);
    let never = elf::DF_1_NODELETE.0;
    assert_eq!(flags.map(|flags| flags.d_val(endian) & never), Some(never));
}

/// Two copies of umf in one process, of which one is the allocator of the other.
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

/// Runs the program `heap` with the library preloaded, and returns what it prints.
fn run_heap(
    installed: &Installed,
    program: &Path,
    settings: &str,
    arguments: &[&str],
    variables: &[(&str, &OsStr)],
) -> String {
    let output = Command::new("timeout")
        .args(["-k", "5", "60"])
        .arg(program)
        .args(arguments)
        .env_remove("UMF_LOG")
        .env("UMF_PROXY", settings)
        .env("LD_LIBRARY_PATH", installed.prefix.join("lib"))
        .env("LD_PRELOAD", installed.prefix.join("lib/libumf_proxy.so"))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{settings}: {:?}\n{lines}{errors}", output.status);
    lines
}

const KNOWN: &str = "one pool: 1\nnot on the stack: 3\numf_proxy: 1 1\nallocated by the pool: 1\n\
                     freed twice: 3, gone: 3 3\ndestroyed: 3\n";

/// Returns what `heap shared` prints.
fn shared_lines() -> String {
    let opened = "the other one reads: question\nhere is: answer\nafter it was freed: refused: 3\n";
    format!("{KNOWN}{}status 0\nopened by the process itself\n", opened.repeat(3))
}

/// Blocks of `malloc` belong to a pool, and other processes can open them if they are shared.
#[test]
fn its_memory_is_known_to_the_library() {
    let Some(installed) = installed("its_memory_is_known_to_the_library") else { return };
    let program = compile(installed, "heap", &With::default());
    let shared = shared_lines();
    let forked = format!("{KNOWN}{}", "here is: answer\nchild: 0 1 3 3\n".repeat(3));
    for (settings, arguments, said) in [
        ("page.disposition=private", &["private"][..], &format!("{KNOWN}private: 3 3\n")),
        ("page.disposition=shared-fd", &["shared", "proxy"], &shared),
        ("page.disposition=shared-fd", &["shared", "os"], &shared),
        ("page.disposition=shared-shm", &["shared", "proxy"], &shared),
        ("page.disposition=shared-shm", &["shared", "os"], &shared),
        ("page.disposition=shared-fd", &["forked"], &forked),
        ("page.disposition=shared-shm", &["forked"], &forked),
    ] {
        assert_eq!(run_heap(installed, &program, settings, arguments, &[]), **said, "{settings}");
    }
    std::fs::remove_file(program).unwrap();
}

/// The heap's own exporter answers in the directory that `libumf.so.1` passes to it.
#[test]
fn its_memory_is_opened_over_a_directory() {
    let Some(installed) = installed("its_memory_is_opened_over_a_directory") else { return };
    let program = compile(installed, "heap", &With::default());
    let folder = std::env::temp_dir().join(format!("umf-preloaded-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    // No other mode is tried, as between containers.
    let variables = [("UMF_IPC_DIR", folder.as_os_str()), ("UMF_IPC_EXCHANGE", OsStr::new("directory"))];
    for settings in ["page.disposition=shared-fd", "page.disposition=shared-shm"] {
        for importer in ["proxy", "os"] {
            let lines = run_heap(installed, &program, settings, &["shared", importer], &variables);
            assert_eq!(lines, shared_lines(), "{settings} {importer}");
        }
    }
    // Fails if a file is left.
    std::fs::remove_dir(&folder).unwrap();
    std::fs::remove_file(program).unwrap();
}
