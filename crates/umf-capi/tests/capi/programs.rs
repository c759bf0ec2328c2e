//! C programs, with this library and with the original.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::installed::{Installed, compiler, installed};

/// Compiles `tests/c/<name>.c`, for one test of this process.
pub fn compile(installed: &Installed, name: &str, test: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = installed.prefix.join(format!("{name}-{test}-{}", std::process::id()));
    let mut compile = Command::new(compiler());
    compile.args(["-Wall", "-std=gnu11", "-O1", "-o"]).arg(&program).arg(source);
    compile.arg("-I").arg(installed.headers()).arg(installed.library()).args(["-lpthread", "-ldl"]);
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program with a library, and ends it if it does not end.
fn run(program: &Path, library: &Path, arguments: &[&str]) -> Output {
    let file = program.with_extension("memory");
    let mut folders = vec![library.parent().unwrap().to_owned()];
    folders.extend(std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
    let mut child = Command::new(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap())
        .env("IPC_FILE", &file)
        .env("UMF_LIBRARY", library)
        .env_remove("UMF_LOG")
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

fn said(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Runs it with ours, and with the original where that is named: they say the same. Returns what ours says.
fn both(test: &str, name: &str, arguments: &[&str]) -> Option<Vec<String>> {
    let installed = installed(test)?;
    let program = compile(installed, name, "beside");
    let ours = run(&program, &installed.library(), arguments);
    assert!(
        ours.status.success(),
        "{:?}\n{:?}\n{}",
        ours.status,
        said(&ours),
        String::from_utf8_lossy(&ours.stderr)
    );
    match std::env::var_os("UMF_PEER") {
        Some(peer) => {
            let peer = run(&program, Path::new(&peer), arguments);
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

fn has(lines: &[String], line: &str) {
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
        // Reading a size_t into 4 bytes would write past them.
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
fn two_processes_share_memory() {
    for (memory, kind) in
        [("os", "disjoint"), ("os", "proxy"), ("file", "disjoint"), ("file", "proxy"), ("named", "disjoint")]
    {
        let test = "two_processes_share_memory";
        // The original takes the name of shared memory away when it is opened, and so opens it once.
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

/// Runs it with ours alone.
fn alone(test: &str, name: &str, arguments: &[&str]) -> Option<Vec<String>> {
    let installed = installed(test)?;
    let program = compile(installed, name, "beside");
    let ours = run(&program, &installed.library(), arguments);
    assert!(
        ours.status.success(),
        "{:?}\n{:?}\n{}",
        ours.status,
        said(&ours),
        String::from_utf8_lossy(&ours.stderr)
    );
    std::fs::remove_file(program).unwrap();
    Some(said(&ours))
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
