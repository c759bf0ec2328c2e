//! Remote memory between processes: kills, freezes, limits, forks, and reuse at full speed.
//!
//! Each test starts this program again, as producers and importers, which obey commands: one a line
//! (`producer.rs`, `importer.rs`). Three variables choose the fabric: `UMF_REMOTE_LIBRARY`,
//! `UMF_REMOTE_PROVIDER` and `UMF_REMOTE_INTERFACE`. `tests/remote/run` runs the tests between two
//! network namespaces.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod child;
mod importer;
mod kills;
mod limits;
mod links;
mod many;
#[path = "../../../../tests/src/patience.rs"]
mod patience;
mod producer;
mod reuse;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../../tests/src/rng.rs"]
mod rng;

use std::time::Duration;

use umf_remote::RemoteSettings;

/// What this machine permits.
pub(crate) mod machine {
    /// Prints why a test cannot run here. The test then returns, and counts as passed.
    pub(crate) fn skip(test: &str, why: &str) {
        println!("umf-skip: {test}: {why}");
    }

    /// Returns whether this is a virtual machine of the tests, which may be slow.
    pub(crate) fn is_guest() -> bool {
        std::env::var_os("TESTS_GUEST").is_some()
    }

    pub(crate) fn is_root() -> bool {
        // SAFETY: returns a number.
        unsafe { libc::geteuid() == 0 }
    }

    /// Returns a number of the environment.
    pub(crate) fn number(variable: &str) -> Option<u64> {
        std::env::var(variable).ok().map(|text| text.parse().unwrap())
    }
}

/// Returns the settings of a process: those of the environment, and changes as `name=value`.
pub(crate) fn settings(changes: &str) -> RemoteSettings {
    let variable = |name| std::env::var(name).ok();
    let mut settings = RemoteSettings::new();
    settings.local = false;
    // For a busy machine. Tests of lost processes set less.
    settings.timeout = Duration::from_secs(20);
    if let Some(library) = variable("UMF_REMOTE_LIBRARY") {
        settings.library = library.into();
    }
    let provider = variable("UMF_REMOTE_PROVIDER");
    let interface = variable("UMF_REMOTE_INTERFACE");
    if provider.as_ref().is_none_or(|provider| provider.contains("tcp")) {
        settings.interface = "127.0.0.1".to_owned();
    }
    settings.provider = provider.unwrap_or_default();
    settings.interface = interface.unwrap_or(settings.interface);
    for change in changes.split_whitespace() {
        let (name, value) = change.split_once('=').unwrap();
        let number = value.parse().unwrap();
        match name {
            "timeout_ms" => settings.timeout = Duration::from_millis(number),
            "idle_ms" => settings.idle = Duration::from_millis(number),
            "max_grant_ms" => settings.max_grant = Duration::from_millis(number),
            "max_importers" => settings.max_importers = number as u32,
            "max_registered" => settings.max_registered = number,
            "small_read" => settings.small_read = number as usize,
            _ => panic!("no setting {name}"),
        }
    }
    settings
}

/// Returns whether large reads need nothing of the producer's process once their key is known.
fn reads_are_one_sided() -> bool {
    std::env::var("UMF_REMOTE_PROVIDER").is_ok_and(|provider| provider == "umf")
}

/// Returns the index of the first byte that is not of a block with this word in every 8 bytes.
pub(crate) fn first_wrong(data: &[u8], offset: usize, word: u64) -> Option<usize> {
    let mut bytes = word.to_le_bytes();
    bytes.rotate_left(offset % 8);
    let is_right = |part: &[u8]| *part == bytes[..part.len()];
    let wrong = data.chunks(8).position(|part| !is_right(part))?;
    (wrong * 8..data.len()).find(|at| data[*at] != bytes[at % 8])
}

/// A process that a test started does its part here.
#[test]
fn role_of_this_process() {
    let Ok(role) = std::env::var(child::ROLE) else { return };
    let changes = std::env::var(child::SETTINGS).unwrap_or_default();
    if let Some(user) = machine::number(child::USER) {
        let user = user as u32;
        // SAFETY: changes this process only.
        let result =
            unsafe { libc::setgroups(0, std::ptr::null()) | libc::setgid(user) | libc::setuid(user) };
        assert_eq!(result, 0);
    }
    match role.as_str() {
        "producer" => producer::run(&settings(&changes)),
        "importer" => importer::run(&settings(&changes)),
        _ => panic!("no role {role}"),
    }
    // The harness would print a result.
    std::process::exit(0);
}
