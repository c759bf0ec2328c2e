//! What this machine permits a test to do.

use umf::dma_buf::{DmaBufBuilder, DmaBufProvider};

use crate::{Actor, Spawn};

/// Prints why a test cannot run here, in the form that `tests/run` lists. The test then returns,
/// and counts as passed.
pub fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}

/// Returns whether this process is root. Namespaces and other uids need that.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// Starts an actor in new namespaces. If the kernel refuses, prints the reason and returns `None`.
#[must_use]
pub fn in_namespaces(test: &str, spawn: Spawn, flags: i32) -> Option<Actor> {
    match spawn.namespaces(flags).try_start() {
        Ok(actor) => Some(actor),
        Err(error) => {
            skip(test, &format!("no namespaces of its own: {error}"));
            None
        }
    }
}

/// Returns whether `UMF_TESTS_LONG=1` requests the long form of the tests.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("UMF_TESTS_LONG").is_some_and(|value| value == "1")
}

/// Returns whether this is a guest of `tests/vm/run`. Tests may change the settings of such a
/// machine.
#[must_use]
pub fn is_guest() -> bool {
    std::env::var_os("TESTS_GUEST").is_some()
}

/// Returns the dma-buf sources of this machine, as `pool <name> dma-buf <source>` of an actor
/// accepts them. Prints one line for each source that is missing.
#[must_use]
pub fn dma_buf_sources(test: &str) -> Vec<&'static str> {
    let all = ["udmabuf", "heap:system"];
    let is_there = |source: &&str| match dma_buf_provider(source) {
        Ok(_) => true,
        Err(error) => {
            skip(&format!("{test} over {source}"), &error.to_string());
            false
        }
    };
    all.into_iter().filter(is_there).collect()
}

/// Returns the builder of a provider over a dma-buf source: `udmabuf` or `heap:<name>`.
///
/// # Errors
/// If the machine does not have the source.
pub fn dma_buf_provider(source: &str) -> umf_core::Result<DmaBufBuilder> {
    match source.split_once(':') {
        Some((_, heap)) => DmaBufProvider::heap(heap),
        None => DmaBufProvider::udmabuf(),
    }
}

/// Returns the lines of `bufinfo` about the buffers of a process. Returns `None` if debugfs cannot
/// be read.
#[must_use]
pub fn dma_bufs_of(pid: u32) -> Option<Vec<String>> {
    // Buffer names need not be UTF-8.
    let all = std::fs::read("/sys/kernel/debug/dma_buf/bufinfo").ok()?;
    let name = format!("umf {pid} ");
    Some(
        String::from_utf8_lossy(&all)
            .lines()
            .filter(|line| line.contains(&name))
            .map(str::to_owned)
            .collect(),
    )
}
