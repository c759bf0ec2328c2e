//! What this machine lets a test do.

use umf::dma_buf::{DmaBufBuilder, DmaBufProvider};

use crate::{Actor, Spawn};

/// Says why a test proves nothing here, in the form that `tests/run` lists. The test then ends, and counts as passed.
pub fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}

/// Whether this process is root, which namespaces and other uids need.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// An actor in new namespaces, or one line that says why there is none.
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

/// A variable asks for the long forms of tests.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("UMF_TESTS_LONG").is_some_and(|value| value == "1")
}

/// Whether this is a guest of `tests/vm/run`: a machine that belongs to the tests, whose settings they may change.
#[must_use]
pub fn is_guest() -> bool {
    std::env::var_os("TESTS_GUEST").is_some()
}

/// The sources of dma-bufs that this machine has, as `pool <name> dma-buf <source>` of an actor takes them. One line says
/// why there is one less.
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

/// A provider over such a source: `udmabuf` or `heap:<name>`.
///
/// # Errors
/// What is lacking.
pub fn dma_buf_provider(source: &str) -> umf_core::Result<DmaBufBuilder> {
    match source.split_once(':') {
        Some((_, heap)) => DmaBufProvider::heap(heap),
        None => DmaBufProvider::udmabuf(),
    }
}

/// The lines of `bufinfo` about buffers that a process named; `None` where the kernel does not show them.
#[must_use]
pub fn dma_bufs_of(pid: u32) -> Option<Vec<String>> {
    // Names need not be text.
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
