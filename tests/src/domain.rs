//! What there is of a domain, seen from outside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// A name that no other test has, be it of another run at the same time.
#[must_use]
pub fn name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

/// How many fds and mappings of the domain's memory all processes of this machine have, and how many of its sockets are
/// bound: where there are none, the kernel has freed everything.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn traces(domain: &str) -> usize {
    let memory = [format!("/memfd:umf-domain/{domain} "), format!("/memfd:umf-domain-table/{domain} ")];
    let is_trace = |text: &str| memory.iter().any(|name| text.contains(name));
    let mut found = 0;
    for process in fs::read_dir("/proc").unwrap().flatten() {
        if !process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let maps = fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        found += maps.lines().filter(|line| is_trace(line)).count();
        let fds = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        found += fds
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .filter(|to| is_trace(&to.to_string_lossy()))
            .count();
    }
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    found
        + sockets
            .lines()
            .filter(|line| line.contains(" @umf-domain-") && line.ends_with(&format!("-{domain}")))
            .count()
}

/// Waits until there are no [`traces`].
///
/// # Panics
/// If they do not go within 5 s.
#[track_caller]
pub fn nothing_is_left(domain: &str) {
    // A killed process that was reaped is gone with all that it had, but its children's copies may take a moment.
    let end = Instant::now() + Duration::from_secs(5);
    while traces(domain) > 0 {
        assert!(Instant::now() < end, "{} traces of {domain}", traces(domain));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The user that this process and its actors are, which the sockets of their domains name.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn uid() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}
