//! Invalid settings: one error that names the key, the source and the valid values.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use umf_tests::{Actor, Spawn, spawn};

/// Temporary folder. Dropping it removes the folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("umf-tests-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join("umf.toml");
        std::fs::write(&path, content).unwrap();
        // umf ignores a file that a group can write, as the umask may permit.
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Asserts that each command that needs settings fails with the same error, which contains these
/// words.
fn assert_fails(spawn: Spawn, variant: &str, words: &[&str]) {
    let shown = format!("{spawn:?}");
    let mut actor: Actor = spawn.start();
    let message = match actor.ask("settings") {
        Err(failure) if failure.variant == variant => failure.message,
        other => {
            panic!("{other:?} instead of {variant} with ..{}", &shown[shown.len().saturating_sub(160)..])
        }
    };
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
    for command in ["pool p shared", "pool p private", "importer", "exporter", "open 00 -> m", "settings"] {
        assert_eq!(actor.fails(command, variant), message, "{command}");
    }
    actor.finish();
}

#[test]
fn bad_value_of_variable_names_key_and_valid_values() {
    for (variable, value, key) in [
        ("UMF_IPC_EXCHANGE", "ptrace", "ipc.exchange"),
        ("UMF_IPC_EXCHANGE", "pidfd,", "ipc.exchange"),
        ("UMF_IPC_EXCHANGE", "pidfd,auto", "ipc.exchange"),
        ("UMF_IPC_PTRACER", "-1", "ipc.ptracer"),
        ("UMF_IPC_LIMIT", "medium", "ipc.limit"),
        ("UMF_IPC_OPEN_TIMEOUT_MS", "soon", "ipc.open_timeout_ms"),
        ("UMF_IPC_OPEN_TIMEOUT_MS", "-1", "ipc.open_timeout_ms"),
        ("UMF_IPC_IMPORTER_SHARDS", "3", "ipc.importer_shards"),
        ("UMF_IPC_MAX_OPENED_BYTES", "12 parsecs", "ipc.max_opened_bytes"),
        ("UMF_IPC_MAX_OPENED_HANDLES", "many", "ipc.max_opened_handles"),
        ("UMF_IPC_MAX_OPENED_HANDLES", "-5", "ipc.max_opened_handles"),
        ("UMF_IPC_MAX_CREATED_HANDLES", "1.5", "ipc.max_created_handles"),
        ("UMF_POOL_DEFAULTS_MIN_BLOCK_SIZE", "13", "min_block_size"),
        ("UMF_PROVIDER_HOST_NUMA", "everywhere", "provider.host.numa"),
    ] {
        assert_fails(spawn!().env(variable, value), "BadValue", &[variable, key, "valid is"]);
    }
    assert_fails(
        spawn!().env_bytes("UMF_IPC_EXCHANGE", b"\xFF\xFE"),
        "NotUnicode",
        &["UMF_IPC_EXCHANGE", "ipc.exchange"],
    );
}

#[test]
fn bad_file_names_key_and_file() {
    let folder = Folder::new("files");
    for (content, variant, words) in [
        (&b"[ipc]\nexchange = \"ptrace\"\n"[..], "BadValue", &["ipc.exchange", "valid is", "umf.toml"][..]),
        (b"[ipc]\nexchnage = \"auto\"\n", "UnknownKey", &["exchnage", "exchange", "umf.toml"]),
        (b"[icp]\n", "UnknownKey", &["icp", "ipc"]),
        (b"[ipc]\nlimit = 3\n", "BadValue", &["ipc.limit", "soft"]),
        (b"[ipc]\nmax_opened_handles = -1\n", "BadValue", &["ipc.max_opened_handles"]),
        (b"[ipc\n", "FileSyntax", &["umf.toml"]),
        (b"ipc = 3\n", "BadValue", &["ipc"]),
        (b"\xFF\xFE\x00", "FileNotText", &["umf.toml", "UTF-8"]),
        (b"[ipc]\nexchange = \"auto\"\nexchange = \"auto\"\n", "FileSyntax", &["umf.toml"]),
    ] {
        let path = folder.write(content);
        // A file that is named, and a file in the working directory.
        assert_fails(spawn!().env("UMF_TOML", &path), variant, words);
        assert_fails(spawn!().directory(&folder.0), variant, words);
    }
    // A named file must exist and be a regular file.
    assert_fails(
        spawn!().env("UMF_TOML", "/nowhere/umf.toml"),
        "FileUnreadable",
        &["/nowhere/umf.toml", "UMF_TOML"],
    );
    assert_fails(spawn!().env("UMF_TOML", "/"), "FileNotRegular", &["regular"]);
    assert_fails(spawn!().env("UMF_TOML", "/dev/zero"), "FileNotRegular", &["regular"]);
    // Valid settings apply, and variables override the file.
    let path = folder.write("[ipc]\nexchange = [\"procfs\", \"pidfd\"]\nmax_opened_handles = 7\n");
    let mut actor = spawn!().env("UMF_TOML", &path).env("UMF_MAX_OPENED_IPC_HANDLES", "9").start();
    let settings = actor.ok("settings");
    assert!(settings.contains("max_opened_handles: 9") && settings.contains("[Procfs, Pidfd]"), "{settings}");
    // In the older variables, a value that is not a number means no limit.
    let mut actor = spawn!().env("UMF_MAX_OPENED_IPC_HANDLES", "many").start();
    assert!(actor.ok("settings").contains("max_opened_handles: 0"));
    // Variables of other programs with the same prefix are ignored.
    let mut actor = spawn!().env("UMF_OTHER_PROGRAM", "1").start();
    actor.ok("pool p shared");
}
