//! `umf info --topology`, run as users run it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn tree(name: &str) -> String {
    let trees = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("umf-topology/tests/trees");
    trees.join(name).to_str().unwrap().to_owned()
}

fn umf(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
    command.args(["info", "--topology"]).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = umf(arguments);
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = umf(arguments);
    assert!(!status.success() && stdout.is_empty(), "{status}");
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

/// A temporary folder, removed when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("umf-topology-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn text_has_matrices_and_spaces() {
    let text = printed(&["--from", &tree("hbm.txt")]);
    for line in [
        "  3     755 MiB  743 MiB  none  75    1       -           -",
        "  3     31  17  28  10",
        "  2     0     819200     819200      130      130",
        "  highest-bandwidth  nodes 2, 1        by the firmware's figures (HMAT)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is missing in\n{text}");
    }
    let untold = printed(&["--from", &tree("memoryless.txt")]);
    assert!(
        untold.contains("unknown: there is no HMAT table") && untold.contains("name the nodes"),
        "{untold}"
    );
    assert!(untold.lines().all(|line| line.chars().count() <= 80), "{untold}");
}

#[test]
fn json_has_nodes_and_spaces() {
    let document: Value = serde_json::from_str(&printed(&["--json", "--from", &tree("hbm.txt")])).unwrap();
    assert_eq!(document["format"], 1);
    assert_eq!(document["nodes"].as_array().unwrap().len(), 4);
    let slow = &document["nodes"][3];
    assert_eq!(slow["distances"], json!({ "0": 31, "1": 17, "2": 28, "3": 10 }));
    assert_eq!(slow["access_from_cpus"]["initiators"], json!([1]));
    assert_eq!(slow["access_from_cpus"]["read_latency"], 250);
    assert_eq!(document["spaces"]["highest-bandwidth"]["nodes"], json!([2, 1]));
    assert_eq!(document["tiers"][0], json!({ "tier": 1, "nodes": [2] }));
}

#[test]
fn recording_of_this_machine_reads_back() {
    if !Path::new("/sys/devices/system").exists() {
        println!("umf-skip: umf info --topology: sysfs is not mounted on /sys");
        return;
    }
    let folder = Folder::new("drawn");
    let (picture, recording) = (folder.file("nodes.svg"), folder.file("nodes.txt"));
    printed(&["--svg", &picture, "--record", &recording]);
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n") && picture.contains(">node 0<"));
    // Leaves out what changes from moment to moment.
    let parts = |arguments: &[&str]| {
        let mut document: Value = serde_json::from_str(&printed(arguments)).unwrap();
        for node in document["nodes"].as_array_mut().unwrap() {
            node["free"] = Value::Null;
            node["huge_pages"] = Value::Null;
        }
        document
    };
    assert_eq!(parts(&["--json", "--from", &recording]), parts(&["--json"]));
}

#[test]
fn io_errors_name_the_file() {
    let folder = Folder::new("refused");
    let empty = folder.file("");
    assert!(refused(&["--from", &empty]).contains("sys/devices/system/node: does not exist"));
    assert!(refused(&["--from", &folder.file("nothing")]).contains("nothing"));
    let broken = folder.file("broken");
    std::fs::write(&broken, "sys/devices/system/node/online:many\n").unwrap();
    let error = refused(&["--from", &broken]);
    assert!(error.contains("sys/devices/system/node/online") && error.contains("many"), "{error}");
    assert!(refused(&["--svg", &folder.file("no/such/folder.svg")]).contains("no/such/folder.svg"));
    if Path::new("/dev/full").exists() {
        assert!(refused(&["--svg", "/dev/full"]).contains("/dev/full"));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_umf")).args(["info", "--svg", "x.svg"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("--topology"), "is for a topology alone");
}
