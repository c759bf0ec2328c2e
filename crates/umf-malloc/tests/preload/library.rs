//! The library, and programs that run with it and without.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// All memory dispositions that can be had here.
pub fn modes(test: &str) -> Vec<&'static str> {
    let mut modes = vec!["", "page.disposition=shared-fd"];
    if has_room(test) {
        modes.push("page.disposition=shared-shm");
    }
    modes
}

/// Whether there is room for heaps in `/dev/shm`; one line that says so if there is not. (Touching what does not fit is a signal.)
pub fn has_room(test: &str) -> bool {
    let mut room = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a C string, and `room` is valid for the write.
    let result = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), room.as_mut_ptr()) };
    // SAFETY: zeros are numbers, and what the call writes is, too.
    let room = unsafe { room.assume_init() };
    let has_room = result == 0 && room.f_bavail.saturating_mul(room.f_frsize) >= 1 << 30;
    if !has_room {
        println!("umf-skip: {test}: there is less than 1 GiB in /dev/shm");
    }
    has_room
}

/// Cargo builds it beside the tests.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let beside = std::env::current_exe().unwrap().with_file_name("libumf_proxy.so");
        assert!(beside.exists(), "{} is not there", beside.display());
        beside
    })
}

/// What a program said, and how it ended: the exit status, or minus the signal.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub status: i32,
    pub output: String,
    pub errors: String,
}

/// Runs a command, with the library and these settings if there are any, and ends it if it does not end.
pub fn run(command: &mut Command, settings: Option<&str>) -> Said {
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
    Said { status, output: text(&output), errors: text(&errors) }
}

/// Whether there is such a program; one line that says so if there is not.
pub fn is_there(test: &str, program: &str) -> bool {
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
    if !is_there(test, &compiler) {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = folder.join(name);
    let mut compile = Command::new(compiler);
    compile.args(["-Wall", "-Wextra", "-std=gnu11", "-O1", "-o"]).arg(&program).arg(source);
    let said = run(compile.args(["-lpthread", "-ldl"]), None);
    assert_eq!(said.status, 0, "{}", said.errors);
    Some(program)
}
