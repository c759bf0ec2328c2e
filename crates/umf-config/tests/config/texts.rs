//! Error texts name the source, the key, the value, and the valid values.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use crate::sandbox::Sandbox;
use crate::schema::schema;
use umf_config::{Error, Loader};

/// Returns the error of a settings file, without the folder of its path.
fn text(file: &str) -> String {
    Sandbox::with_file(file).text()
}

#[test]
fn wrong_value_names_line_key_and_what_is_valid() {
    let file = "# pools\n[pool.gpu]\nkind = \"slab\"\nmax_cached = \"3 elephants\"\n";
    let valid = "valid is a number of bytes such as 65536 or \"64KiB\"";
    assert_eq!(text(file), format!("umf.toml:4: pool.gpu.max_cached = \"3 elephants\": not valid; {valid}"));
    let sandbox = Sandbox::new().variable("UMF_POOL_GPU_MAX_CACHED", "3 elephants");
    let expected =
        format!("UMF_POOL_GPU_MAX_CACHED: pool.gpu.max_cached = \"3 elephants\": not valid; {valid}");
    assert_eq!(sandbox.text(), expected);
}

#[test]
fn unknown_key_suggests_or_names_the_kind_that_has_it() {
    let wrong = "[pool.gpu]\nmax_cahced = 1\n";
    assert_eq!(text(wrong), "umf.toml:2: unknown key pool.gpu.max_cahced; did you mean max_cached?");
    assert_eq!(
        text("[pool.gpu]\nkind = \"proxy\"\nmax_cached = 1\n"),
        "umf.toml:3: unknown key pool.gpu.max_cached; it is a key of kind \"slab\"; \
         valid here: kind, provider, memory_limit"
    );
    // A source of higher precedence sets the kind.
    let sandbox = Sandbox::with_file("[pool.gpu]\nmax_cached = 1\n").variable("UMF_POOL_GPU_KIND", "proxy");
    assert!(sandbox.text().contains("it is a key of kind \"slab\""), "{}", sandbox.text());
    assert_eq!(
        text("max_handles = 1\n"),
        "umf.toml:1: unknown key max_handles; did you mean ipc.max_handles?"
    );
    assert_eq!(
        text("zzz = 1\n"),
        "umf.toml:1: unknown key zzz; valid here: ipc, pool, provider, shared_limits"
    );
}

#[test]
fn ambiguous_variable_names_all_keys() {
    let sandbox = Sandbox::with_file("[pool.a-b]\n[pool.a_b]\n").variable("UMF_POOL_A_B_CAPACITY", "1");
    assert_eq!(
        sandbox.text(),
        "UMF_POOL_A_B_CAPACITY is ambiguous: it could mean any of pool.a-b.capacity, pool.a_b.capacity; use UMF_SET or a file"
    );
}

/// Each source in turn has a wrong value, and the error names that source.
#[test]
fn each_source_is_named() {
    const WRONG: &str = "[ipc]\n\nlimit = \"medium\"\n";
    let rest = "ipc.limit = \"medium\": not valid; valid is one of \"soft\", \"hard\"";
    let sandbox = Sandbox::new();
    for path in [sandbox.system(), sandbox.user(), sandbox.cwd()] {
        fs::write(&path, WRONG).unwrap();
        let origin = format!("{}:3", path.display());
        assert_eq!(sandbox.refusal(), format!("{origin}: {rest}"));
        fs::remove_file(&path).unwrap();
    }
    let sandbox = Sandbox::new().variable("UMF_IPC_LIMIT", "medium");
    assert_eq!(sandbox.refusal(), format!("UMF_IPC_LIMIT: {rest}"));
    let sandbox = Sandbox::new().variable("UMF_SET", "ipc.limit = 'medium'");
    assert_eq!(sandbox.refusal(), format!("UMF_SET: {rest}"));
    let error = Sandbox::new().loader().set("ipc.limit", "medium").load(schema()).unwrap_err();
    assert_eq!(error.to_string(), format!("program: {rest}"));
}

#[test]
fn invalid_value_is_an_error_even_if_overridden() {
    let sandbox = Sandbox::with_file("[ipc]\nlimit = 3\n").variable("UMF_IPC_LIMIT", "hard");
    assert_eq!(sandbox.text(), "umf.toml:2: ipc.limit = 3: not valid; valid is one of \"soft\", \"hard\"");
}

#[test]
fn values_are_not_converted() {
    let whole = "valid is a whole number from 0 to 4294967295";
    for value in ["1.5", "true", "\"1\"", "-1", "4294967296"] {
        let error = text(&format!("[ipc]\nmax_handles = {value}\n"));
        assert_eq!(error, format!("umf.toml:2: ipc.max_handles = {value}: not valid; {whole}"));
    }
    let error = text("[ipc]\nleases = 1\n");
    assert_eq!(error, "umf.toml:2: ipc.leases = 1: not valid; valid is true or false");
}

#[test]
fn older_name_is_the_key_and_both_are_a_conflict() {
    let block = |file: &str| {
        let loaded = Sandbox::with_file(file).loaded();
        loaded.set("pool", "defaults").read::<crate::schema::Slab>().unwrap().min_block_size
    };
    assert_eq!(block("[pool.defaults]\nmin_bucket_size = 64\n"), 64);
    // The source of higher precedence wins, even if it uses the old name of the key.
    let sandbox = Sandbox::with_file("[pool.defaults]\nmin_block_size = 16\n");
    let sandbox = sandbox.variable("UMF_POOL_DEFAULTS_MIN_BUCKET_SIZE", "32");
    let pool = sandbox.loaded().set("pool", "other");
    assert_eq!(pool.read::<crate::schema::Slab>().unwrap().min_block_size, 32);
    let error = text("[pool.defaults]\nmin_block_size = 8\nmin_bucket_size = 8\n");
    assert!(error.contains("is set twice") && error.contains("min_block_size"), "{error}");
    let error = text("[ipc]\ntimeout = 8\n");
    assert_eq!(error, "umf.toml:2: ipc.timeout: this key was removed; use max_handles");
}

#[test]
fn code_is_refused_from_untrusted_sources() {
    let set = "[provider.plugin]\npath = \"/opt/x.so\"\n";
    assert!(Sandbox::with_file(set).load().is_ok());
    let sandbox = Sandbox::new();
    fs::write(sandbox.system(), set).unwrap();
    assert!(sandbox.load().is_ok());
    let sandbox = Sandbox::new();
    sandbox.write_cwd(set);
    assert!(matches!(sandbox.load(), Err(Error::Refused { .. })));
    assert!(
        sandbox.refusal().contains("umf.toml:2: provider.plugin.path is refused"),
        "{}",
        sandbox.refusal()
    );
    for (name, value) in
        [("UMF_PROVIDER_PLUGIN_PATH", "/opt/x.so"), ("UMF_SET", "provider.plugin.path = '/x'")]
    {
        let error = Sandbox::new().variable(name, value).load().unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
    }
    assert!(Sandbox::new().loader().set("provider.plugin.path", "/opt/x.so").load(schema()).is_ok());
    // An environment variable may set a key that a file in the working directory may not set.
    let sandbox = Sandbox::new();
    sandbox.write_cwd("[ipc]\nptracer = 7\n");
    assert!(matches!(sandbox.load(), Err(Error::Refused { .. })));
    assert!(Sandbox::new().variable("UMF_IPC_PTRACER", "7").load().is_ok());
}

#[test]
fn names_are_checked() {
    let error = text("[pool.\"a b\"]\n");
    assert!(error.starts_with("umf.toml:1: invalid name \"a b\" in pool"), "{error}");
    assert!(text("[pool]\ncapacity = 4\n").contains("pool.capacity = 4: not valid; valid is a table"));
    let error = Loader::with_context(umf_config::Context::empty()).set("pool..kind", "slab").load(schema());
    assert!(matches!(error, Err(Error::BadName { .. })), "{error:?}");
}

#[test]
fn file_that_is_not_toml_names_the_line() {
    assert!(text("[ipc]\nlimit = \n").starts_with("umf.toml:2: not valid TOML: "));
    assert_eq!(
        text("[ipc]\n\nmax_handles = 99999999999999999999\n"),
        "umf.toml:3: not valid TOML: a whole number does not fit into 64 bits; correct it"
    );
}
