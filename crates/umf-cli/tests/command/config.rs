//! `umf config` with valid, odd and invalid settings.

// Clippy does not treat functions that tests share as tests.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A temporary folder, removed when dropped.
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
        // Overrides the umask: a file that its group can write is ignored.
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
fn json_names_origin_of_every_value() {
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
fn changed_shows_changed_settings_only() {
    let folder = Folder::new("changed");
    let path = folder.write("[ipc]\nlimit = \"hard\"\n");
    let (code, stdout, _) = text(&mut folder.umf(&["--changed"]));
    let path = path.display();
    assert_eq!(code, Some(0));
    assert_eq!(stdout, format!("ipc.limit  hard  {path}:2\n\nread {path}\n"));
}

#[test]
fn without_files_all_settings_are_defaults() {
    let folder = Folder::new("defaults");
    let (code, stdout, _) = text(&mut folder.umf(&[]));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("ipc.exchange") && stdout.ends_with("no settings file was read\n"), "{stdout}");
}

#[test]
fn unknown_variable_is_warning() {
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
fn file_writable_by_other_users_is_ignored_with_warning() {
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
fn invalid_file_prints_one_message_and_exits_with_2() {
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
fn template_equals_repository_umf_toml() {
    let (code, stdout, stderr) = text(&mut Folder::new("template").umf(&["--template"]));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let file = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../umf.toml")).unwrap();
    // The default is 0 on a machine with one processor.
    let without = |text: &str| text.replace("#spin_us = 0\n", "#spin_us = 2000\n");
    assert!(without(&stdout) == file, "umf.toml is not `umf config --template`:\n{stdout}");
}

#[test]
fn repository_umf_toml_sets_nothing() {
    let folder = Folder::new("asleep");
    folder.write(include_str!("../../../../umf.toml"));
    let (code, stdout, stderr) = text(&mut folder.umf(&["--changed"]));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.starts_with("read "), "{stdout}");
}

/// Uncomments every key of every kind.
#[test]
fn uncommented_template_sets_defaults() {
    let folder = Folder::new("awake");
    let (_, template, _) = text(&mut folder.umf(&["--template"]));
    let awake = template.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase()) => key,
        _ => line,
    });
    let path = folder.write(&awake.collect::<Vec<_>>().join("\n"));
    let named = |arguments: &[&str]| {
        let (code, stdout, stderr) = text(folder.umf(arguments).env("UMF_TOML", &path));
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        stdout
    };
    let document: Value = serde_json::from_str(&named(&["--json"])).unwrap();
    let default: Vec<_> = document["settings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["origin"]["kind"] == "default")
        .collect();
    // An empty table has no origin.
    assert!(default.iter().all(|row| row["key"] == "provider.plugin.params"), "{default:?}");
    std::fs::remove_file(&path).unwrap();
    let (_, stdout, _) = text(&mut folder.umf(&["--json"]));
    let untouched: Value = serde_json::from_str(&stdout).unwrap();
    for row in untouched["settings"].as_array().unwrap() {
        let key = row["key"].as_str().unwrap();
        assert_eq!(self::row(&document, key)["value"], row["value"], "{key}");
    }
}

#[test]
fn set_of_unknown_kind_is_shown_as_not_read() {
    let folder = Folder::new("unknown");
    folder.write("[pool.theirs]\nkind = \"acme\"\ndepth = 3\n");
    let (code, stdout, _) = text(&mut folder.umf(&["--changed"]));
    assert_eq!(code, Some(0));
    let line = stdout.lines().find(|line| line.starts_with("pool.theirs.depth")).unwrap();
    assert!(line.ends_with("umf.toml:3 (not read: this program does not know the kind)"), "{line}");
}

#[test]
fn key_of_other_kind_is_error() {
    let folder = Folder::new("kinds");
    folder.write("[pool.x]\nkind = \"proxy\"\nmax_cached = 1\n");
    let (code, _, stderr) = text(&mut folder.umf(&[]));
    assert_eq!(code, Some(2));
    let expected = "umf.toml:3: unknown key pool.x.max_cached; it is a key of kind \"slab\"; valid here: kind, provider, ";
    assert!(stderr.contains(expected), "{stderr}");
}

/// Sets keys of each kind through environment variables.
#[test]
fn every_kind_is_set_by_variables() {
    let folder = Folder::new("variables");
    let mut command = folder.umf(&["--json"]);
    for (variable, value) in [
        ("UMF_PROVIDER_HOST_NUMA", "local"),
        ("UMF_PROVIDER_DMA_BUF_EXPORTER", "heap"),
        ("UMF_PROVIDER_LEVEL_ZERO_DEVICE", "3"),
        ("UMF_PROVIDER_CUDA_MEMORY", "managed"),
        ("UMF_PROVIDER_FILE_PATH", "/tmp/x"),
        ("UMF_PROVIDER_DEVDAX_SIZE", "2MiB"),
        ("UMF_PROVIDER_FIXED_SIZE", "1MiB"),
        ("UMF_PROVIDER_PLUGIN_PARAMS", "{ a = 1 }"),
        ("UMF_POOL_J_KIND", "jemalloc"),
        ("UMF_POOL_J_ARENAS", "2"),
        ("UMF_POOL_S_CAPACITY", "9"),
        ("UMF_POOL_P_KIND", "proxy"),
        ("UMF_POOL_P_MEMORY_LIMIT", "1GiB"),
    ] {
        command.env(variable, value);
    }
    let (code, stdout, stderr) = text(&mut command);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let document: Value = serde_json::from_str(&stdout).unwrap();
    for (key, value) in [
        ("provider.host.numa", "local"),
        ("provider.dma-buf.exporter", "heap"),
        ("provider.level-zero.device", "3"),
        ("provider.cuda.memory", "managed"),
        ("provider.file.path", "/tmp/x"),
        ("provider.devdax.size", "2MiB"),
        ("provider.fixed.size", "1MiB"),
        ("provider.plugin.params", "{ a = 1 }"),
        ("pool.j.arenas", "2"),
        ("pool.s.capacity", "9"),
        ("pool.p.memory_limit", "1GiB"),
    ] {
        assert_eq!(row(&document, key)["value"], value, "{key}");
    }
}

#[test]
fn closed_stdout_is_success() {
    let folder = Folder::new("unread");
    let mut child = folder.umf(&[]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
