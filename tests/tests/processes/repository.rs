//! Checks of the repository itself: the dependencies of its crates, which point down only and are
//! few; and the closing line of `tests/run`, which `tests/sum.awk` computes from a log.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Crates of this repository, and which of them each may name in its `[dependencies]`, from the
/// bottom up.
const EDGES: &[(&str, &[&str])] = &[
    ("umf-core", &[]),
    ("umf-derive", &[]),
    ("umf-topology", &[]),
    ("umf-sync", &["umf-core"]),
    ("umf-os", &["umf-core", "umf-sync"]),
    ("umf-suballoc", &["umf-core", "umf-sync"]),
    ("umf-runtime", &["umf-core", "umf-os", "umf-sync"]),
    ("umf-testkit", &["umf-core", "umf-runtime", "umf-sync"]),
    ("umf-config", &["umf-core", "umf-os"]),
    ("umf-ipc", &["umf-core", "umf-os", "umf-runtime", "umf-sync"]),
    ("umf-domain", &["umf-core", "umf-ipc", "umf-os", "umf-sync"]),
    ("umf-link", &["umf-core", "umf-domain", "umf-ipc", "umf-os", "umf-sync"]),
    ("umf-remote", &["umf-core", "umf-ipc", "umf-libfabric-sys", "umf-os", "umf-sync"]),
    ("umf-cli", &["umf-rs", "umf-libfabric-sys", "umf-os"]),
    ("level-zero-sys", &[]),
    ("umf-cuda-sys", &[]),
    ("umf-libfabric-sys", &[]),
    ("soft-device", &[]),
    ("level-zero-soft", &["level-zero-sys", "soft-device"]),
    ("cuda-soft", &["soft-device", "umf-cuda-sys"]),
];

/// Permitted dependencies of providers and of pools, besides their bindings.
const PROVIDER: &[&str] = &["umf-core", "umf-os", "umf-suballoc", "umf-sync"];
const POOL: &[&str] = &["umf-core", "umf-os", "umf-runtime", "umf-suballoc", "umf-sync"];
const BINDINGS: &[(&str, &str)] =
    &[("umf-provider-cuda", "umf-cuda-sys"), ("umf-provider-level-zero", "level-zero-sys")];

/// The public crate, shared libraries, tests and examples, which may depend on any crate.
const TOPS: &[&str] = &[
    "umf-rs",
    "umf-capi",
    "umf-malloc",
    "umf-ofi",
    "umf-tests",
    "umf-models",
    "umf-benches",
    "umf-examples",
];

/// Runs `cargo metadata` in a folder of this repository.
fn metadata(folder: &str, arguments: &[&str]) -> Value {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(format!("{root}/{folder}")).args(["metadata", "--format-version", "1", "--offline"]);
    // Packages for other systems may not be cached.
    cargo.arg(format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH));
    let output = cargo.args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Returns the crates of the workspace with their normal dependencies in the workspace.
fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata(".", &["--no-deps", "--locked"]);
    let names: BTreeSet<_> =
        list(&metadata["packages"]).iter().map(|package| text(&package["name"])).collect();
    let is_normal = |edge: &&Value| edge["kind"].is_null();
    let edges = |package: &Value| {
        let normal = list(&package["dependencies"]).iter().filter(is_normal);
        normal.map(|edge| text(&edge["name"])).filter(|name| names.contains(name)).collect()
    };
    list(&metadata["packages"]).iter().map(|package| (text(&package["name"]), edges(package))).collect()
}

fn allowed(name: &str) -> Option<Vec<&'static str>> {
    if let Some((_, edges)) = EDGES.iter().find(|(listed, _)| *listed == name) {
        return Some(edges.to_vec());
    }
    let base = if name.starts_with("umf-provider-") {
        PROVIDER
    } else if name.starts_with("umf-pool-") {
        POOL
    } else {
        return None;
    };
    let bindings = BINDINGS.iter().filter(|(of, _)| *of == name).map(|(_, binding)| *binding);
    Some(base.iter().copied().chain(bindings).collect())
}

#[test]
fn crates_depend_on_lower_crates_only() {
    let edges = edges();
    let mut faults = Vec::new();
    for (name, found) in &edges {
        match allowed(name) {
            Some(allowed) => {
                let more = found.iter().filter(|edge| !allowed.contains(&edge.as_str()));
                faults.extend(more.map(|edge| format!("{name} depends on {edge}")));
            }
            None if TOPS.contains(&name.as_str()) => {}
            None => faults.push(format!("{name} is in no list of this test")),
        }
    }
    for (name, listed) in EDGES {
        let Some(found) = edges.get(*name) else {
            faults.push(format!("{name} is listed and is no crate"));
            continue;
        };
        let unused = listed.iter().filter(|edge| !found.contains(**edge));
        faults.extend(unused.map(|edge| format!("{name} is listed with {edge} and does not depend on it")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// `umf-core` depends on `serde_core` alone, so that the author of a provider with settings
/// compiles little. (Half of the ten are derive macros that `serde_core` names for no target.)
#[test]
fn provider_crate_compiles_ten_packages_at_most() {
    let metadata = metadata("examples/own-provider", &["--locked"]);
    let nodes: BTreeMap<_, _> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| (text(&node["id"]), node)).collect();
    let (mut found, mut next) = (BTreeSet::new(), vec![text(&metadata["resolve"]["root"])]);
    while let Some(id) = next.pop() {
        let is_normal = |edge: &&Value| list(&edge["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        next.extend(list(&nodes[&id]["deps"]).iter().filter(is_normal).map(|edge| text(&edge["pkg"])));
        if !found.insert(id) {
            continue;
        }
        assert!(found.len() <= 10, "{found:?}");
    }
    assert!(found.len() > 1, "{found:?}");
}

/// Counts the packages of a program that depends on `umf-rs` with default features, `umf-rs`
/// included.
#[test]
fn hello_world_compiles_47_packages_at_most() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).args(["tree", "--locked", "--offline"]);
    let output = cargo.args(["-p", "umf-rs", "-e", "normal,build", "--prefix", "none"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let names: BTreeSet<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("umf-rs") && names.len() <= 47, "{names:?}");
}

/// Runs `tests/sum.awk` on a log, and returns its output.
fn sum(log: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/sum.awk");
    let mut awk = Command::new("awk");
    let mut awk = awk.args(["-f", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    awk.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let output = awk.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.success(), text.contains(" 0 failed,"), "{text}");
    text
}

/// The log of a test program that passes.
const PASSED: &str = "     Running unittests src/lib.rs (target/debug/deps/a-1)\n\
    test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";

#[test]
fn results_of_all_programs_are_summed() {
    let log = format!(
        "{PASSED}     Running tests/x.rs (target/debug/deps/x-1)\n\
         test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
         error: test failed, to rerun pass `-p a --test x`\n   Doc-tests a\n\
         test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
         umf-skip: b: no root\numf-skip: b: no root\nerror: 1 target failed:\numf-step: 101 cargo test\n"
    );
    let expected = "\ncould not run here:\n  b: no root\n\n8 passed, 2 failed, 1 skipped\n";
    assert_eq!(sum(&log), expected);
}

#[test]
fn failed_tests_are_listed_with_their_first_panic() {
    let log = format!(
        "{PASSED}     Running tests/x.rs (target/debug/deps/x-1)\ntest a::b ... ok\ntest a::c ... FAILED\n\n\
         successes:\n\n---- a::b stdout ----\n\nthread 'a::b' (7) panicked at src/b.rs:1:2:\nexpected\n\n\
         failures:\n\n---- a::c stdout ----\n\nthread 'a::c' (8) panicked at src/c.rs:3:4:\nfirst\nnote\n\
         thread 'a::c' (8) panicked at src/c.rs:5:6:\nsecond\n\nfailures:\n    a::c\n\n\
         test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
         FAILED test_x.py::test_y - AssertionError\ntest result: python. 1 passed; 1 failed; 0 ignored\n"
    );
    let expected = "\nfailed:\n  Running tests/x.rs (target/debug/deps/x-1): a::c ... FAILED\n    \
        at src/c.rs:3:4:\n    first\n  FAILED test_x.py::test_y - AssertionError\n\n\
        5 passed, 2 failed, 1 skipped\n";
    assert_eq!(sum(&log), expected);
}

#[test]
fn program_that_ends_before_its_result_is_a_failure() {
    let aborted = "     Running tests/x.rs (target/debug/deps/x-1)\nrunning 2 tests\n\
        error: test failed, to rerun pass `-p a --test x`\n\nCaused by:\n  process didn't exit \
        successfully: `x` (signal: 6, SIGABRT: process abort signal)\n";
    for log in [
        format!("{PASSED}{aborted}umf-step: 101 cargo test\n"),
        format!("{aborted}{PASSED}umf-step: 101 cargo test\n"),
        // As in tests/unprivileged, which does not use cargo.
        format!("{PASSED}     Running as uid 65534: leases-1\numf-step: 1 tests/unprivileged\n"),
    ] {
        let text = sum(&log);
        assert!(text.contains("ended before its result"), "{text}");
        assert!(text.ends_with("\n3 passed, 1 failed, 1 skipped\n"), "{text}");
    }
}

#[test]
fn program_that_fails_after_its_result_is_a_failure() {
    let text = sum(&format!("{PASSED}error: test failed, to rerun pass `-p a --lib`\numf-step: 101 cargo\n"));
    assert!(text.ends_with("\n3 passed, 1 failed, 1 skipped\n"), "{text}");
}

#[test]
fn step_that_fails_without_a_test_is_a_failure() {
    let text = sum(&format!("{PASSED}umf-step: 0 cargo test\numf-step: 125 tests/vm/run --workspace\n"));
    assert!(text.contains("  125 tests/vm/run --workspace\n"), "{text}");
    assert!(text.ends_with("\n3 passed, 1 failed, 1 skipped\n"), "{text}");
}
