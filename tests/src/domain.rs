//! Kernel objects of a domain over all processes, as `/proc` shows them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Returns a domain name that no other test uses, in this or a concurrent run.
#[must_use]
pub fn name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

/// Counts the fds and mappings of the domain's memory in all processes, and its bound sockets. If
/// the sum is 0, the kernel has freed the domain.
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

/// Waits until the domain has no [`traces`].
///
/// # Panics
/// If it still has traces after 5 s.
#[track_caller]
pub fn assert_nothing_left(domain: &str) {
    // A reaped process holds nothing, but its children end later and hold copies.
    let end = Instant::now() + Duration::from_secs(5);
    while traces(domain) > 0 {
        assert!(Instant::now() < end, "{} traces of {domain}", traces(domain));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the user id of this process and its actors. The socket names of a domain contain it.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn uid() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}
