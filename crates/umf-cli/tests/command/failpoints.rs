//! Released packages contain no failpoints.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::process::Command;

/// Programs and libraries that users build. Only builds together with umf-tests have failpoints.
const RELEASED: [&str; 5] = ["umf-rs", "umf-capi", "umf-cli", "umf-examples", "umf-malloc"];

#[test]
fn released_packages_have_no_failpoints() {
    let features = |packages: &[&str]| {
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"]);
        tree.args(["--format", "{p}: {f}"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = tree.args(packages.iter().flat_map(|package| ["--package", package])).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let has_failpoints = |packages: &[&str]| {
        features(packages).lines().any(|line| line.starts_with("umf-sync ") && line.contains("failpoints"))
    };
    assert!(has_failpoints(&["umf-tests"]), "the feature is found where it is on");
    assert!(!has_failpoints(&RELEASED), "the feature failpoints is on");
}
