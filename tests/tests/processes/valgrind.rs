//! Programs under valgrind, which unmaps the vDSO although the auxiliary vector contains its
//! address.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::process::Command;

use umf::host::HostProvider;
use umf::ipc::ExporterSettings;
use umf::pools::{SlabPool, SlabSettings};
use umf::{Exporter, Visibility};
use umf_core::{Layout, pool};
use umf_tests::machine;

const NAME: &str = "valgrind::block_is_exported_under_valgrind";
/// Set if this process runs under valgrind.
const UNDER_VALGRIND: &str = "TESTS_UNDER_VALGRIND";

#[test]
fn block_is_exported_under_valgrind() {
    if std::env::var_os(UNDER_VALGRIND).is_some() {
        return export();
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return machine::skip(NAME, "valgrind is not installed");
    }
    let output = Command::new("valgrind")
        .arg("--tool=none")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--test-threads=1"])
        .env(UNDER_VALGRIND, "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
}

/// Allocates and exports a block, which needs the page size and the time.
fn export() {
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let address = pool::allocate(&*pool, Layout::new(4096, 8).unwrap()).unwrap();
    // SAFETY: the test holds no reference into the block.
    let handle = unsafe { exporter.handle(address) }.unwrap();
    assert!(handle.length() >= 4096);
    // SAFETY: the block is live, and no pointer into it is used afterwards.
    unsafe { pool::free(&*pool, address) }.unwrap();
}
