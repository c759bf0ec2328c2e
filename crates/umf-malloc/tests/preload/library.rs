//! Runs programs with the library and without.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the settings of all memory dispositions that work on this machine.
pub fn modes(test: &str) -> Vec<&'static str> {
    let mut modes = vec!["", "page.disposition=shared-fd"];
    if has_room(test) {
        modes.push("page.disposition=shared-shm");
    }
    modes
}

/// Returns whether `/dev/shm` has room for heaps; prints that the test is skipped if not. Touching
/// a page that does not fit raises `SIGBUS`.
pub fn has_room(test: &str) -> bool {
    let mut room = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path is a C string, and `room` is valid for the write.
    let result = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), room.as_mut_ptr()) };
    // SAFETY: zeros are valid, and so is what the call writes.
    let room = unsafe { room.assume_init() };
    let has_room = result == 0 && room.f_bavail.saturating_mul(room.f_frsize) >= 1 << 30;
    if !has_room {
        println!("umf-skip: {test}: there is less than 1 GiB in /dev/shm");
    }
    has_room
}

/// Returns the path of the library. It is a copy of what cargo builds beside the tests, since a
/// test that runs at the same time may have cargo link it again.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let beside = std::env::current_exe().unwrap().with_file_name("libumf_proxy.so");
        let name = |id: u32| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libumf_proxy.{id}.so"));
        let (copy, own) = (name(0), name(std::process::id()));
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            // Another process may use the former copy.
            match std::fs::copy(&beside, &own).and_then(|_| std::fs::rename(&own, &copy)) {
                Ok(()) => return copy,
                Err(error) if Instant::now() > end => panic!("{}: {error}", beside.display()),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    })
}

/// The output of a program, and its exit status, or minus the signal that killed it.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub status: i32,
    pub output: String,
    pub errors: String,
}

/// Runs a command, with the library if there are `settings`. Kills it after two minutes.
pub fn run(command: &mut Command, settings: Option<&str>) -> Outcome {
    use std::os::unix::process::ExitStatusExt as _;
    command.env_remove("LD_PRELOAD").env_remove("UMF_PROXY").env("LC_ALL", "C");
    if let Some(settings) = settings {
        command.env("LD_PRELOAD", library());
        if !settings.is_empty() {
            command.env("UMF_PROXY", settings);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let [output, errors] = ["output", "errors"].map(|name| folder.path().join(name));
    let file = |path: &PathBuf| Stdio::from(std::fs::File::create(path).unwrap());
    let mut child = command.stdin(Stdio::null()).stdout(file(&output)).stderr(file(&errors)).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{command:?} with {settings:?} did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let status = status.code().unwrap_or_else(|| -status.signal().unwrap());
    Outcome { status, output: text(&output), errors: text(&errors) }
}

/// Returns whether a program is installed; prints that the test is skipped if not.
pub fn is_installed(test: &str, program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$0\"", program])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        println!("umf-skip: {test}: there is no {program}");
    }
    found
}

/// Compiles `tests/c/<name>.c` into `folder`.
pub fn compile(test: &str, name: &str, folder: &Path) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if !is_installed(test, &compiler) {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = folder.join(name);
    let mut compile = Command::new(compiler);
    compile.args(["-Wall", "-Wextra", "-std=gnu11", "-O1", "-o"]).arg(&program).arg(source);
    let outcome = run(compile.args(["-lpthread", "-ldl"]), None);
    assert_eq!(outcome.status, 0, "{}", outcome.errors);
    Some(program)
}
