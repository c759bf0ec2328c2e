//! A program with more rights than the user that starts it.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::installed::installed;
use crate::programs::{With, compile, has, said};

const ROOT: u32 = 0;
const OTHER_USER: u32 = 65534;

/// A folder that other users can enter, unlike the target folder. Removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("umf-capi-rights-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// Copies a file by another process. A file that this process has open for writing while
    /// another test forks cannot be executed (`ETXTBSY`).
    fn copy(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.0.join(name);
        let status = Command::new("cp").arg(from).arg(&to).status().unwrap();
        assert!(status.success());
        to
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn set_user_id_program_reads_no_variable() {
    const TEST: &str = "set_user_id_program_reads_no_variable";
    let Some(installed) = installed(TEST) else { return };
    // SAFETY: `geteuid` always succeeds and touches no memory of this process.
    if unsafe { libc::geteuid() } != ROOT {
        println!("umf-skip: {TEST}: only root can make a set-user-id program of root");
        return;
    }
    let folder = Folder::new();
    folder.copy(&installed.library(), "libumf.so.1");
    // The loader of a set-user-id program ignores LD_LIBRARY_PATH and uses an absolute run path.
    let mut run_path = OsString::from("-Wl,-rpath,");
    run_path.push(&folder.0);
    let compiled = compile(installed, "rights", &With { flags: vec![run_path], ..With::default() });
    let program = folder.copy(&compiled, "program");
    std::fs::remove_file(compiled).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();

    let [by_log, by_conf, by_conf_file] = ["log", "conf", "conf-file"].map(|name| folder.0.join(name));
    let settings = folder.0.join("settings");
    std::fs::write(&settings, format!("umf.logger.output={}\n", by_conf_file.display())).unwrap();
    let start = |user: u32| -> Output {
        Command::new("timeout")
            .args(["-k", "5", "60"])
            .arg(&program)
            .uid(user)
            .gid(user)
            .current_dir("/")
            .env_remove("LD_LIBRARY_PATH")
            .env("UMF_LOG", format!("output:file,{}", by_log.display()))
            .env("UMF_CONF", format!("umf.logger.output={}", by_conf.display()))
            .env("UMF_CONF_FILE", &settings)
            .output()
            .unwrap()
    };

    // Started by root, it has no additional rights, and each variable creates a file.
    let output = start(ROOT);
    assert!(output.status.success(), "{output:?}");
    has(&said(&output), "secure: 0");
    for file in [&by_log, &by_conf, &by_conf_file] {
        std::fs::remove_file(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    let output = start(OTHER_USER);
    if output.status.code() == Some(126) {
        println!("umf-skip: {TEST}: another user may not run {}", program.display());
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let lines = said(&output);
    if lines.iter().any(|line| line == "secure: 0") {
        println!("umf-skip: {TEST}: set-user-id has no effect here (nosuid, or no_new_privs)");
        return;
    }
    for line in ["umfInit: 0", "effective user: 0", "secure: 1"] {
        has(&lines, line);
    }
    for file in [&by_log, &by_conf, &by_conf_file] {
        assert!(!file.exists(), "{} was created with the rights of root", file.display());
    }
}
