//! Compiles and runs C programs, with this library and with the original.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::installed::{Installed, compiler, installed};

/// Additional inputs of a program.
#[derive(Default)]
pub struct With {
    /// Flags of the compiler.
    pub flags: Vec<OsString>,
    /// A folder at the start of the library path.
    pub libraries: Option<PathBuf>,
    pub variables: Vec<(&'static str, OsString)>,
}

/// Compiles `tests/c/<name>.c`.
pub fn compile(installed: &Installed, name: &str, with: &With) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let program = installed.prefix.join(format!("{name}-{}-{number}", std::process::id()));
    let mut compile = Command::new(compiler());
    compile.args(["-Wall", "-std=gnu11", "-O1", "-o"]).arg(&program).arg(source);
    // `umfrs.h` is in this project's headers only.
    compile.arg("-I").arg(installed.headers()).arg("-I").arg(installed.prefix.join("include"));
    compile.arg(installed.library()).args(["-lpthread", "-ldl"]);
    compile.args(&with.flags);
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program with a library, and kills it after a minute.
fn run(program: &Path, library: &Path, arguments: &[&str], with: &With) -> Output {
    let file = program.with_extension("memory");
    let mut folders: Vec<_> = with.libraries.iter().cloned().collect();
    folders.push(library.parent().unwrap().to_owned());
    folders.extend(std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
    let mut child = Command::new(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap())
        .env("IPC_FILE", &file)
        .env("UMF_LIBRARY", library)
        .env_remove("UMF_LOG")
        // Those of the tests, which are no variables of the library.
        .env_remove("UMF_PEER")
        .env_remove("UMF_PEER_HEADERS")
        .envs(with.variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{} {arguments:?} did not end", program.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let _ = std::fs::remove_file(file);
    output
}

pub fn said(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Runs a program with this library; and with the original, if named, which must print the same.
/// Returns the output of this library.
fn both(test: &str, name: &str, arguments: &[&str]) -> Option<Vec<String>> {
    both_with(test, name, arguments, &With::default())
}

/// As [`both`], with additional inputs. `UMF_IS_OURS` tells the program that it runs with this
/// library.
pub fn both_with(test: &str, name: &str, arguments: &[&str], with: &With) -> Option<Vec<String>> {
    let installed = installed(test)?;
    let program = compile(installed, name, with);
    let ours = run_ours(installed, &program, arguments, with);
    match std::env::var_os("UMF_PEER") {
        Some(peer) => {
            let peer = run(&program, Path::new(&peer), arguments, with);
            let same = |output: &Output| {
                said(output).into_iter().filter(|line| !line.starts_with("better")).collect::<Vec<_>>()
            };
            assert_eq!(same(&ours), same(&peer), "{}", String::from_utf8_lossy(&peer.stderr));
        }
        None => println!("umf-skip: {test} beside the original: UMF_PEER does not name its libumf.so.1"),
    }
    std::fs::remove_file(program).unwrap();
    Some(said(&ours))
}

pub fn has(lines: &[String], line: &str) {
    assert!(lines.iter().any(|known| known == line), "{line}\nnot in {lines:#?}");
}

#[test]
fn every_function_answers_as_the_original_does() {
    let Some(lines) = both("every_function_answers_as_the_original_does", "answers", &[]) else { return };
    for line in [
        "umfGetCurrentVersion() = 65536",
        "umfCUDAMemoryProviderParamsCreate(&cu) = 7",
        "umfMemoryProviderAlloc(p,1UL<<60,0,&m) = 2",
        "e = 1001",
        "umfPoolByPtr(&h2,&h2) = 3",
        "umfCtlGet(\"umf.nope\",&v,sizeof v) = 9",
        "better: umfPoolCalloc(h,1,10)!=0 = 1",
        // Reading a size_t into 4 bytes must not write past them.
        "better: umfCtlGet(\"umf.pool.by_handle.{}.stats.alloc_count\",&v,4,h) = 3",
    ] {
        has(&lines, line);
    }
    assert!(lines.len() > 200, "{}", lines.len());
}

#[test]
fn tables_of_programs_work_in_all_versions() {
    let Some(lines) = both("tables_of_programs_work_in_all_versions", "tables", &[]) else { return };
    for line in [
        "better: umfCtlGet(\"umf.provider.by_handle.{}.nothing\", &answer, sizeof answer, provider) = 9",
        "better: umfCtlGet(\"umf.provider.by_name.mallocs.answer.{}\", &answer, sizeof answer, (size_t)3) = 0",
        "umfPoolByPtr(block, &found) == 0 && found == inner = 1",
        "through a long handle",
        "puts_seen = 1",
    ] {
        has(&lines, line);
    }
    assert!(
        lines.iter().filter(|line| line.starts_with("live = ")).all(|line| line == "live = 0"),
        "{lines:#?}"
    );
}

#[test]
fn codes_and_effects_of_failures_are_those_of_the_original() {
    let test = "codes_and_effects_of_failures_are_those_of_the_original";
    let Some(lines) = both(test, "codes", &[]) else { return };
    for line in [
        "default name of os: OS 0",
        "default name of level zero: LEVEL_ZERO 0",
        "umfMemoryProviderAlloc(os, 3 * page, 3 * page, &memory) = 0",
        "umfMemoryProviderAlloc(os, SIZE_MAX, 0, &memory) = 2",
        "native(os) = 1004",
        "umfMemoryProviderAlloc(file, page, 3, &memory) = 4",
        "umfMemoryProviderAlloc(fixed, size + page, 0, &memory) = 1",
        "umfMemoryProviderGetIPCHandleSize(fixed, &handle) = 5",
        "native(fixed) = 4001",
        "fixed != NULL = 1",
        "umfMemspaceUserFilter(space, rejects, &answer) = 6",
        "better: umfPoolMalloc(inner, 6 * page) == NULL = 1",
        "better: inside == blocks[first] = 1",
        "pool == NULL = 1",
        "better: failed == second = 1",
        "size = 8",
        "umfCtlGet(\"umf.{}.by_handle.{}.stats.alloc_count\", &value, sizeof value, \"pool\", pool) = 0",
        "umfCtlGet(\"umf.pool.default.codes\", &got, sizeof got) = 0",
    ] {
        has(&lines, line);
    }
    assert!(!lines.iter().any(|line| line == "better: failed == second = 0"), "{lines:#?}");
    let purged = lines.iter().filter(|line| *line == "better: *(volatile char *)memory = 0").count();
    assert_eq!(purged, 2, "{lines:#?}");
}

#[test]
fn wrappers_of_every_provider_work_under_every_pool() {
    let test = "wrappers_of_every_provider_work_under_every_pool";
    for memory in ["os", "file", "fixed"] {
        for kind in ["disjoint", "proxy", "jemalloc", "scalable"] {
            // The original was built without jemalloc.
            let lines = if kind == "jemalloc" {
                alone(test, "wrappers", &[memory, kind])
            } else {
                both(test, "wrappers", &[memory, kind])
            };
            let Some(lines) = lines else { return };
            if lines.iter().any(|line| line.ends_with(" pool")) {
                println!("umf-skip: {test}: {kind}: {lines:?} (Debian: libtbbmalloc2 for scalable)");
                continue;
            }
            has(&lines, "threads failed: 0");
            has(&lines, "the wrapper was called: 1");
            if memory != "fixed" {
                has(&lines, "plain source: distinct addresses: 1, readable until closed: 1");
                has(&lines, "wrapped source: distinct addresses: 1, readable until closed: 1");
                has(&lines, "child reads: question");
                // The scalable pool exports regions, and not blocks.
                if kind != "scalable" {
                    has(&lines, "better: opened after it was freed: 3");
                }
                has(&lines, "status 0");
            }
            if kind == "proxy" {
                has(&lines, "split: 0");
                has(&lines, "merge: 0");
                has(&lines, "pool: 1");
            }
            if kind == "proxy" && memory != "fixed" {
                has(&lines, "handle of the inner region: 0");
                has(&lines, "handle of a slab: 0");
                has(&lines, "better: reads: 5");
            }
        }
    }
}

#[test]
fn disjoint_pools_keep_little_and_reclaim_before_they_fail() {
    let test = "disjoint_pools_keep_little_and_reclaim_before_they_fail";
    let Some(lines) = both(test, "kept", &[]) else { return };
    let failed: Vec<_> = lines.iter().filter(|line| line.ends_with(" failed")).collect();
    assert!(failed.len() == 8 && failed.iter().all(|line| line.ends_with(": 0 failed")), "{lines:#?}");
    let kept: Vec<_> = lines.iter().filter(|line| line.contains(" are kept: ")).collect();
    assert!(kept.len() == 5 && kept.iter().all(|line| line.ends_with(": 1")), "{lines:#?}");
    for line in ["have <= 8 * MIB + 64 * KIB = 1", "have <= 64 * KIB = 1"] {
        has(&lines, line);
    }
    assert!(
        lines.iter().filter(|line| line.starts_with("have = ")).all(|line| line == "have = 0"),
        "{lines:#?}"
    );
}

#[test]
fn two_processes_share_memory() {
    for (memory, kind) in
        [("os", "disjoint"), ("os", "proxy"), ("file", "disjoint"), ("file", "proxy"), ("named", "disjoint")]
    {
        let test = "two_processes_share_memory";
        // The original unlinks the name at the first open, so a second open fails.
        let name = if memory == "named" {
            alone(test, "ipc", &[memory, kind])
        } else {
            both(test, "ipc", &[memory, kind])
        };
        let Some(lines) = name else { return };
        for line in [
            "child reads: question",
            "opened twice at one address: 1",
            "parent reads: answer",
            "better: closed once too often: 3",
            "better: opened after it was freed: 3",
            "status 0",
        ] {
            has(&lines, line);
        }
    }
    let left = std::fs::read_dir("/dev/shm").unwrap().filter_map(Result::ok);
    let left: Vec<_> =
        left.filter(|entry| entry.file_name().to_string_lossy().starts_with("umf-capi-test-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Runs a program with this library only.
fn alone(test: &str, name: &str, arguments: &[&str]) -> Option<Vec<String>> {
    alone_with(test, name, arguments, &With::default())
}

/// As [`alone`], with additional inputs.
pub fn alone_with(test: &str, name: &str, arguments: &[&str], with: &With) -> Option<Vec<String>> {
    let installed = installed(test)?;
    let program = compile(installed, name, with);
    let ours = run_ours(installed, &program, arguments, with);
    std::fs::remove_file(program).unwrap();
    Some(said(&ours))
}

/// Runs a program with this library, which may fail.
pub fn start(installed: &Installed, program: &Path, arguments: &[&str], with: &With) -> Output {
    run(program, &installed.library(), arguments, with)
}

/// Runs a program with this library. It must succeed.
fn run_ours(installed: &Installed, program: &Path, arguments: &[&str], with: &With) -> Output {
    let mut variables = with.variables.clone();
    variables.push(("UMF_IS_OURS", "1".into()));
    let with = With { flags: Vec::new(), libraries: with.libraries.clone(), variables };
    let ours = run(program, &installed.library(), arguments, &with);
    let error = String::from_utf8_lossy(&ours.stderr);
    assert!(ours.status.success(), "{:?}\n{:?}\n{error}", ours.status, said(&ours));
    ours
}

#[test]
fn defects_of_the_original_are_absent() {
    let Some(lines) = alone("defects_of_the_original_are_absent", "defects", &[]) else { return };
    let wrong: Vec<_> = lines.iter().filter(|line| !line.ends_with(": absent")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(lines.len() >= 20, "{lines:#?}");
}

#[test]
fn it_is_loaded_and_unloaded_at_run_time() {
    let Some(lines) = alone("it_is_loaded_and_unloaded_at_run_time", "loaded", &[]) else { return };
    has(&lines, "used in a constructor: 0");
    has(&lines, "loaded, used and unloaded: 0");
    has(&lines, "used at exit: 0");
}
