//! `umf config`, with settings of all kinds.

// Functions that tests share are tests to us, if not to clippy.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder of its own for a test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("umf-config-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, text: &str) -> PathBuf {
        let path = self.0.join("umf.toml");
        std::fs::write(&path, text).unwrap();
        // Whatever the umask: a file that a group can write is ignored.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        path
    }

    fn umf(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
        command.arg("config").args(arguments).stdin(Stdio::null()).current_dir(&self.0);
        command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn row<'d>(document: &'d Value, key: &str) -> &'d Value {
    document["settings"].as_array().unwrap().iter().find(|row| row["key"] == key).unwrap()
}

#[test]
fn every_value_says_where_it_came_from() {
    let folder = Folder::new("origins");
    let path = folder.write("[ipc]\nmax_opened_handles = 7\n[pool.small]\ncapacity = 2\n");
    let mut command = folder.umf(&["--json"]);
    let (code, stdout, stderr) = text(command.env("UMF_IPC_EXCHANGE", "procfs"));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let exchange = row(&document, "ipc.exchange");
    assert_eq!((&exchange["value"], &exchange["origin"]["kind"]), (&"procfs".into(), &"environment".into()));
    assert_eq!(exchange["variable"], "UMF_IPC_EXCHANGE");
    let opened = row(&document, "ipc.max_opened_handles");
    assert_eq!((&opened["value"], &opened["origin"]["kind"]), (&"7".into(), &"file".into()));
    assert_eq!(row(&document, "pool.small.capacity")["value"], "2");
    assert_eq!(row(&document, "log.level")["origin"]["kind"], "default");
    assert_eq!(document["files"][0], path.to_str().unwrap());
}

#[test]
fn what_was_changed_can_be_shown_alone() {
    let folder = Folder::new("changed");
    let path = folder.write("[ipc]\nlimit = \"hard\"\n");
    let (code, stdout, _) = text(&mut folder.umf(&["--changed"]));
    let path = path.display();
    assert_eq!(code, Some(0));
    assert_eq!(stdout, format!("ipc.limit  hard  file {path}\n\nread {path}\n"));
}

#[test]
fn without_any_file_there_are_defaults() {
    let folder = Folder::new("defaults");
    let (code, stdout, _) = text(&mut folder.umf(&[]));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("ipc.exchange") && stdout.ends_with("no settings file was read\n"), "{stdout}");
}

#[test]
fn what_is_odd_is_a_warning() {
    let folder = Folder::new("odd");
    let mut command = folder.umf(&["--json"]);
    let (code, stdout, stderr) = text(command.env("UMF_IPC_EXCHAGNE", "auto").env("UMF_CONF", "a;b"));
    assert_eq!(code, Some(0));
    assert!(stderr.starts_with("umf: warning: environment variable UMF_IPC_EXCHAGNE"), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["warnings"].as_array().unwrap().len(), 1);
    assert_eq!(document["elsewhere"][0]["variable"], "UMF_CONF");
}

#[test]
fn file_that_other_users_can_write_is_ignored_with_a_warning() {
    let folder = Folder::new("writable");
    let path = folder.write("[ipc]\nlimit = \"hard\"\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (code, stdout, stderr) = text(&mut folder.umf(&["--changed"]));
    assert_eq!(code, Some(0));
    assert!(!stdout.contains("ipc.limit") && stdout.ends_with("no settings file was read\n"), "{stdout}");
    let beginning = format!("umf: warning: settings file {} is ignored", path.display());
    assert!(stderr.starts_with(&beginning) && stderr.contains("0666"), "{stderr}");
}

#[test]
fn what_is_wrong_is_one_message_and_code_2() {
    let folder = Folder::new("wrong");
    for (text_of_file, part) in [
        ("[ipc]\nlimit = \"medium\"\n", "soft"),
        ("[ipc]\nlimti = \"soft\"\n", "limit"),
        ("[ipc\n", "not valid TOML"),
    ] {
        folder.write(text_of_file);
        let (code, stdout, stderr) = text(&mut folder.umf(&[]));
        assert_eq!((code, stdout.as_str()), (Some(2), ""));
        assert!(stderr.starts_with("umf: ") && stderr.contains(part), "{stderr}");
    }
}

#[test]
fn nobody_reads_what_it_says() {
    let folder = Folder::new("unread");
    let mut child = folder.umf(&[]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
