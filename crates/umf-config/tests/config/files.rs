//! Which settings files are loaded, and the errors and warnings for the other ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use crate::sandbox::Sandbox;
use crate::schema::Ipc;
use umf_config::{FILE_LIMIT, Loaded, Warning};

fn timeout(loaded: &Loaded) -> u32 {
    loaded.section::<Ipc>("ipc").unwrap().max_handles
}

#[track_caller]
fn assert_names(refusal: &str, parts: &[&str]) {
    for part in parts {
        assert!(refusal.contains(part), "{part:?} is missing in: {refusal}");
    }
}

const OTHER_USER: u32 = 65534;

/// The default of `ipc.max_handles`; the files of these tests set another value.
const DEFAULT: u32 = 0;
const SET: &str = "[ipc]\nmax_handles = 3\n";

#[test]
fn umf_toml_replaces_the_other_files_and_must_exist() {
    let sandbox = Sandbox::with_file("[ipc]\nlimit = \"hard\"\nmax_handles = 7\n");
    fs::write(sandbox.cwd().with_file_name("mine.toml"), "[ipc]\nmax_handles = 9\n").unwrap();
    let sandbox = sandbox.variable("UMF_TOML", "mine.toml");
    let ipc = sandbox.loaded().section::<Ipc>("ipc").unwrap();
    assert_eq!((ipc.limit.as_str(), ipc.max_handles), ("soft", 9));
    let sandbox = sandbox.variable("UMF_TOML", "/no/such/umf.toml");
    assert_names(&sandbox.refusal(), &["/no/such/umf.toml", "UMF_TOML"]);
}

#[test]
fn unreadable_file_is_a_warning_unless_named() {
    let sandbox = Sandbox::with_file("[ipc]\n");
    fs::set_permissions(sandbox.user(), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(sandbox.user()).is_ok() {
        return; // Root can read every file.
    }
    assert_eq!(sandbox.loaded().warnings(), [Warning::UnreadableFile { path: sandbox.user() }]);
    let named = sandbox.user().into_os_string();
    assert!(sandbox.variable("UMF_TOML", named).refusal().contains("cannot read"));
}

#[test]
fn working_directory_file_of_another_user_is_ignored_with_a_warning() {
    const TEST: &str = "working_directory_file_of_another_user_is_ignored_with_a_warning";
    let mut sandbox = Sandbox::new();
    sandbox.write_cwd(SET);
    let own = sandbox.context.user;
    let owner = if own == 0 {
        // A file that root owns is loaded for every user.
        sandbox.context.user = OTHER_USER;
        assert_eq!(timeout(&sandbox.loaded()), 3);
        sandbox.context.user = own;
        if let Err(error) = std::os::unix::fs::chown(sandbox.cwd(), Some(OTHER_USER), None) {
            println!("umf-skip: {TEST}: root cannot give a file to another user here: {error}");
            return;
        }
        OTHER_USER
    } else {
        // The process runs as another user than the owner of the file.
        sandbox.context.user = own + 1;
        own
    };
    let loaded = sandbox.loaded();
    assert_eq!(timeout(&loaded), DEFAULT);
    assert_eq!(loaded.files().count(), 0);
    let user = sandbox.context.user;
    assert_eq!(loaded.warnings(), [Warning::UntrustedFile { path: sandbox.cwd(), owner, mode: 0o644, user }]);
    let text = loaded.warnings()[0].to_string();
    for part in ["cwd/umf.toml", &format!("uid {owner}"), "0644", &format!("uid {user}"), "chown", "UMF_TOML"]
    {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert_eq!(timeout(&sandbox.variable("UMF_TOML", "umf.toml").loaded()), 3);
}

#[test]
fn working_directory_file_that_other_users_can_write_is_ignored_with_a_warning() {
    let sandbox = Sandbox::new();
    sandbox.write_cwd(SET);
    let user = sandbox.context.user;
    for mode in [0o664, 0o646, 0o666] {
        sandbox.set_mode_of_cwd(mode);
        let loaded = sandbox.loaded();
        assert_eq!(timeout(&loaded), DEFAULT, "{mode:o}");
        let warning = Warning::UntrustedFile { path: sandbox.cwd(), owner: user, mode, user };
        assert_eq!(loaded.warnings(), [warning]);
    }
    sandbox.set_mode_of_cwd(0o600);
    let loaded = sandbox.loaded();
    assert_eq!((timeout(&loaded), loaded.warnings()), (3, &[][..]));
    // The system's and the user's files may belong to any user, and have any mode.
    let sandbox = Sandbox::with_file(SET);
    fs::set_permissions(sandbox.user(), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(timeout(&sandbox.loaded()), 3);
}

/// Other users can create each of these in `/tmp`.
#[test]
fn links_fifos_and_sockets_in_the_working_directory_are_warnings() {
    let sandbox = Sandbox::new();
    for target in ["/etc/passwd", "umf.toml", "/no/such/file", "other.toml"] {
        sandbox.write_cwd(SET);
        fs::rename(sandbox.cwd(), sandbox.cwd().with_file_name("other.toml")).unwrap();
        std::os::unix::fs::symlink(target, sandbox.cwd()).unwrap();
        let loaded = sandbox.loaded();
        assert_eq!(timeout(&loaded), DEFAULT, "{target}");
        assert_eq!(loaded.warnings(), [Warning::LinkedFile { path: sandbox.cwd() }], "{target}");
        fs::remove_file(sandbox.cwd()).unwrap();
    }

    let listener = std::os::unix::net::UnixListener::bind(sandbox.cwd()).unwrap();
    assert_eq!(sandbox.loaded().warnings(), [Warning::UnreadableFile { path: sandbox.cwd() }]);
    drop(listener);
    fs::remove_file(sandbox.cwd()).unwrap();

    let status = std::process::Command::new("mkfifo").arg(sandbox.cwd()).status().unwrap();
    assert!(status.success());
    sandbox.set_mode_of_cwd(0o666);
    assert!(matches!(sandbox.loaded().warnings()[..], [Warning::UntrustedFile { mode: 0o666, .. }]));
}

#[test]
fn files_that_are_not_settings_are_errors() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.user(), vec![b'#'; 10 << 20]).unwrap();
    assert_names(&sandbox.refusal(), &["umf.toml", &FILE_LIMIT.to_string()]);
    fs::write(sandbox.user(), b"[ipc]\n# \xff\n").unwrap();
    assert_names(&sandbox.refusal(), &["umf.toml", "UTF-8", "offset 8"]);
    fs::write(sandbox.user(), "[ipc]\nlimit = \n").unwrap();
    assert_names(&sandbox.refusal(), &["umf.toml", "not valid TOML", "umf.toml:2"]);
    fs::remove_file(sandbox.user()).unwrap();
    fs::create_dir(sandbox.user()).unwrap();
    assert_names(&sandbox.refusal(), &["umf.toml", "regular file"]);
    fs::remove_dir(sandbox.user()).unwrap();
    let status = std::process::Command::new("mkfifo").arg(sandbox.user()).status().unwrap();
    assert!(status.success());
    assert_names(&sandbox.refusal(), &["umf.toml", "regular file"]);
}

#[test]
fn a_file_of_exactly_the_limit_is_read() {
    let limit = usize::try_from(FILE_LIMIT).unwrap();
    let sandbox = Sandbox::new();
    fs::write(sandbox.user(), vec![b'#'; limit]).unwrap();
    assert!(sandbox.load().is_ok());
    fs::write(sandbox.user(), vec![b'#'; limit + 1]).unwrap();
    assert!(sandbox.load().is_err());
}

#[test]
fn deep_and_huge_toml_is_an_error_not_a_crash() {
    for text in [
        format!("x = {}", "[".repeat(500_000)),
        format!("x = {}{}", "[".repeat(400_000), "]".repeat(400_000)),
        format!("x = {}", "{a=".repeat(300_000)),
        format!("x{} = 1", ".x".repeat(400_000)),
        format!("[x{}]", ".x".repeat(400_000)),
        format!("[provider.x.params{}]", ".x".repeat(400_000)),
        format!("[provider.x]\nparams = {{ a{} = 1 }}", ".x".repeat(400_000)),
        "[[x]]\n".repeat(100_000),
        format!("[ipc]\nmax_handles = {}", "9".repeat(500_000)),
        format!("[ipc]\n{} = 1", "k".repeat(900_000)),
        format!("[ipc]\nlimit = \"{}\"", "v".repeat(900_000)),
        format!("[provider.x]\n{}", "[provider.x.params.a.b.c]\n".repeat(10_000)),
    ] {
        let refusal = Sandbox::with_file(&text).refusal();
        assert!(refusal.chars().count() < 2_000, "the error is {} bytes long", refusal.len());
    }
}

#[test]
fn of_several_errors_always_the_same_is_reported() {
    let text = "[provider.host]\nzeta = 1\nalpha = 1\n[ipc]\nzeta = 1\nbeta = 1\nalpha = 1\n";
    for _ in 0..16 {
        assert_names(&Sandbox::with_file(text).refusal(), &["unknown key ipc.alpha"]);
    }
}

#[test]
fn a_variable_that_is_not_unicode_is_an_error_that_names_it() {
    let odd = || OsString::from_vec(vec![b'a', 0xff]);
    assert_names(
        &Sandbox::new().variable("UMF_IPC_LIMIT", odd()).refusal(),
        &["UMF_IPC_LIMIT", "ipc.limit", "UTF-8"],
    );
    assert_names(&Sandbox::new().variable("UMF_SET", odd()).refusal(), &["UMF_SET", "UTF-8"]);
    let mut sandbox = Sandbox::new().variable("UMF_MAX_HANDLES", odd()).variable("UMF_X", odd());
    sandbox.context.env.insert(OsString::from_vec(b"UMF_\xff".to_vec()), odd());
    assert_eq!(sandbox.loaded().warnings().len(), 3);
}
