//! A process allocates from a [`SharedArena`], and another one opens a block of it.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::process::Command;
use std::sync::Arc;

use own_provider::{SharedArena, SharedArenaImport};
use umf::settings::{Context, Loader};

const HANDLE: &str = "OWN_PROVIDER_TEST_HANDLE";

#[test]
fn other_process_opens_a_block_once_the_kind_is_registered() {
    if let Ok(handle) = std::env::var(HANDLE) {
        return importer(&handle);
    }
    umf::registry::register_provider::<SharedArena>();
    let text = "[provider.shared-arena]\nsize = \"64MiB\"\n[pool.p]\nprovider = \"shared-arena\"";
    umf::init(Loader::with_context(Context::empty().with_variable("UMF_SET", text))).unwrap();
    let pool = umf::Pool::named("p").unwrap();
    let block = pool.allocate(1000).unwrap();
    block.write(0, b"question").unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process_opens_a_block_once_the_kind_is_registered", "--nocapture"])
        .env(HANDLE, block.handle().unwrap().to_string())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("the importer is done"), "{text}");
    let mut answer = [0; 6];
    block.read(0, &mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

/// The other process, which knows the handle's text only.
fn importer(handle: &str) {
    umf::init(Loader::with_context(Context::empty())).unwrap();
    let handle: umf::Handle = handle.parse().unwrap();
    let error = umf::open(&handle).unwrap_err().to_string();
    for part in ["\"shared-arena\"", "umf::registry::register_import"] {
        assert!(error.contains(part), "{error}");
    }
    umf::registry::register_import(Arc::new(SharedArenaImport));
    let mapping = umf::open(&handle).unwrap();
    let mut question = [0; 8];
    mapping.read(0, &mut question).unwrap();
    assert_eq!(&question, b"question");
    mapping.write(0, b"answer").unwrap();
    println!("the importer is done");
}
