//! `umf ps` and `umf why` about grants to importers on other machines. This process is producer and
//! importer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use umf::remote::{self, Error as RemoteError};
use umf::settings::Loader;

use crate::alone::ran_alone;

fn run(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_umf")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the output once it fits: the server lists a grant after it has answered.
fn eventually(arguments: &[&str], fits: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let text = run(arguments);
        if fits(&text) {
            return text;
        }
        assert!(Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn grant_is_listed_with_importer_and_time() {
    const NAME: &str = "remote_grants::grant_is_listed_with_importer_and_time";
    if ran_alone(NAME) {
        return;
    }
    let loader = Loader::new()
        .set("remote.local", false)
        .set("remote.max_grant_ms", 600_000)
        .set("remote.timeout_ms", 20_000);
    let has_provider = std::env::var_os("UMF_REMOTE_PROVIDER").is_some();
    umf::init(if has_provider { loader } else { loader.set("remote.interface", "127.0.0.1") }).unwrap();
    let _serving = match remote::serve() {
        Err(umf::Error::Remote(error @ (RemoteError::NoLibrary(_) | RemoteError::NoProvider { .. }))) => {
            println!("umf-skip: {NAME}: {error}");
            return;
        }
        serving => serving.unwrap(),
    };
    let pool = umf::Pool::shared().unwrap();
    let (block, other) = (pool.allocate(5000).unwrap(), pool.allocate(5000).unwrap());
    let (handle, of_other) = (block.handle().unwrap(), other.handle().unwrap());
    let (text, of_other) = (handle.to_string(), of_other.to_string());
    let pid = std::process::id();
    let grants = |document: &str| {
        let document: Value = serde_json::from_str(document).unwrap();
        let grants = document["remote_grants"].as_array().unwrap().clone();
        grants.into_iter().filter(|grant| grant["pid"] == pid).collect::<Vec<_>>()
    };
    assert!(grants(&run(&["ps", "--json"])).is_empty());

    let opened = remote::open(&block.remote_handle().unwrap().to_bytes()).unwrap();
    let grant = opened.grant(Duration::from_secs(300)).unwrap();
    let document = eventually(&["ps", "--json"], |document| !grants(document).is_empty());
    let listed = grants(&document);
    assert_eq!((listed.len(), &listed[0]["slot"]), (1, &handle.slot().into()));
    let left = listed[0]["left_ns"].as_u64().unwrap();
    assert!(left > 0 && left <= 300_000_000_000, "{left}");
    let importer = listed[0]["importer"].as_str().unwrap();
    assert!(has_provider || importer.starts_with("127.0.0.1:"), "{importer}");
    let table = run(&["ps"]);
    let line =
        format!("grant: pid {pid}, slot {}: a remote importer at {importer} may write for ", handle.slot());
    assert!(table.contains(&line), "{table}");
    let why = run(&["why", &text]);
    assert!(why.contains(&format!("  granted: a remote importer at {importer} may write for ")), "{why}");
    assert!(why.contains("as the producer does"), "{why}");
    let why = run(&["why", &of_other]);
    assert!(!why.contains("granted: ") && !why.contains("as the producer does"), "{why}");

    grant.end().unwrap();
    eventually(&["ps", "--json"], |document| grants(document).is_empty());
    assert!(!run(&["why", &text]).contains("granted: "));
}
