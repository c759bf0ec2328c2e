//! What is wrong is named: key, source, and what would be valid.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use crate::sandbox::Sandbox;
use umf_config::{Error, FILE_LIMIT, Origin};

#[track_caller]
fn names(refusal: &str, parts: &[&str]) {
    for part in parts {
        assert!(refusal.contains(part), "{part:?} is missing in: {refusal}");
    }
}

#[test]
fn an_unknown_key_names_file_likely_key_and_all_keys() {
    let sandbox = Sandbox::with_file("[ipc]\nexchagne = \"auto\"\n");
    match sandbox.load().unwrap_err() {
        Error::UnknownKey { key, origin, closest, valid } => {
            assert_eq!(key, "ipc.exchagne");
            assert_eq!(origin, Origin::File(sandbox.user()));
            assert_eq!(closest.as_deref(), Some("ipc.exchange"));
            assert_eq!(valid.len(), 9);
        }
        other => panic!("{other}"),
    }
    names(
        &sandbox.refusal(),
        &["ipc.exchagne", "umf.toml", "did you mean `ipc.exchange`", "ipc.open_timeout_ms"],
    );
    for text in
        ["ipcc = 1", "[pool.small]\nsize = 1", "[provider.host]\nparts = 1", "\"ipc[9999999999]\" = 1"]
    {
        let error = Sandbox::with_file(text).load().unwrap_err();
        assert!(matches!(error, Error::UnknownKey { .. }), "{error}");
    }
}

#[test]
fn a_key_in_the_wrong_section_is_shown_the_right_one() {
    names(&Sandbox::with_file("exchange = 1").refusal(), &["did you mean `ipc.exchange`"]);
    let refusal = Sandbox::with_file("[ipc]\ncapacity = 1").refusal();
    names(&refusal, &["did you mean `pool.<name>.capacity`"]);
    names(&Sandbox::with_file("[pool]\ncapacity = 1").refusal(), &["pool.capacity", "[pool.capacity]"]);
}

#[test]
fn of_several_faults_the_same_one_is_told_each_time() {
    let text = "[log]\nzeta = 1\nalpha = 1\n[ipc]\nzeta = 1\nbeta = 1\nalpha = 1\n";
    for _ in 0..16 {
        names(&Sandbox::with_file(text).refusal(), &["`ipc.alpha`"]);
    }
}

#[test]
fn a_bad_value_names_key_value_source_and_what_is_valid() {
    let sandbox = Sandbox::with_file("[ipc]\nlimit = \"medium\"\n");
    names(&sandbox.refusal(), &["ipc.limit", "\"medium\"", "umf.toml", "\"soft\"", "\"hard\""]);
    let sandbox = Sandbox::new().variable("UMF_POOL_DEFAULTS_TRACE", "4");
    names(&sandbox.refusal(), &["pool.defaults.trace", "\"4\"", "UMF_POOL_DEFAULTS_TRACE", "0 to 3"]);
    let error = Sandbox::new().loader().set("ipc.limit", 1).load().unwrap_err();
    names(&error.to_string(), &["ipc.limit", "builder", "\"soft\""]);
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    for text in [
        "ipc = 1",
        "[ipc]\nexchange = []",
        "[ipc]\nexchange = [\"pidfd\", 1]",
        "[ipc]\nptracer = 0",
        "[ipc]\nptracer = -5",
        "[ipc]\nmax_opened_handles = 1.5",
        "[ipc]\nmax_opened_handles = true",
        "[ipc]\nmax_opened_handles = -1",
        "[ipc]\nmax_opened_bytes = \"1 parsec\"",
        "[ipc]\nimporter_shards = 3",
        "[ipc]\nopen_timeout_ms = 0",
        "[pool]\ncapacity = 4",
        "[pool.defaults]\nslab_min_size = 0",
        "[pool.defaults]\nmin_block_size = 24",
        "[pool.defaults]\nkind = \"\"",
        "[provider.host]\nhuge_page_size = 3",
        "[provider.host]\nnuma_nodes = [5000]",
        "[provider.host]\nnuma_weights = [{ node = 0 }]",
        "[provider.host]\nnuma_space = [\"fastest\"]",
        "[provider.host]\nnuma_space = [1]",
        "[provider.host]\nname = \"a/b\"",
        "[provider.host]\nparams = 1",
        "[provider.p]\npath = \"relative.so\"",
        "[shared_limits]\njob = \"lots\"",
        "[log]\noutput = \"file,\"",
        "[log]\ntimestamp = 2",
    ] {
        let error = Sandbox::with_file(text).load().unwrap_err();
        assert!(matches!(error, Error::BadValue { .. }), "{text}: {error}");
    }
}

#[test]
fn a_wrong_value_is_an_error_even_where_it_is_replaced() {
    let sandbox = Sandbox::with_file("[ipc]\nlimit = 3\n").variable("UMF_IPC_LIMIT", "hard");
    names(&sandbox.refusal(), &["ipc.limit", "umf.toml"]);
}

#[test]
fn a_key_under_both_its_names_is_a_conflict() {
    let text = "[pool.defaults]\nmin_block_size = 8\nmin_bucket_size = 8\n";
    names(&Sandbox::with_file(text).refusal(), &["min_block_size", "min_bucket_size", "twice"]);
}

#[test]
fn names_and_references_must_make_sense() {
    let refusal = Sandbox::with_file("[pool.\"a b\"]\n").refusal();
    names(&refusal, &["\"a b\"", "letters"]);
    let refusal = Sandbox::with_file("[pool.small]\nprovider = \"hots\"\n").refusal();
    names(&refusal, &["pool.small.provider", "\"hots\"", "umf.toml", "host"]);
    let refusal = Sandbox::with_file("[pool.small]\nshared_limit = \"job\"\n").refusal();
    names(&refusal, &["pool.small.shared_limit", "\"job\"", "define it"]);
    let sandbox = Sandbox::with_file("[pool.a-b]\n[pool.a_b]\n").variable("UMF_POOL_A_B_TRACE", "1");
    names(&sandbox.refusal(), &["UMF_POOL_A_B_TRACE", "pool.a-b", "pool.a_b"]);
}

#[test]
fn a_plugin_is_named_only_by_trusted_sources() {
    let text = "[provider.x]\nkind = \"plugin\"\npath = \"/opt/x.so\"\nsymbol = \"ops\"\n";
    let settings = Sandbox::with_file(text).loaded().settings;
    assert_eq!(settings.provider["x"].path.as_deref(), Some("/opt/x.so".as_ref()));

    let sandbox = Sandbox::new();
    fs::write(sandbox.system(), text).unwrap();
    assert!(sandbox.load().is_ok());

    let sandbox = Sandbox::new();
    sandbox.write_cwd(text);
    let error = sandbox.load().unwrap_err();
    assert!(matches!(error, Error::UntrustedPlugin { .. }), "{error}");
    names(&error.to_string(), &["provider.x.", "cwd/umf.toml", "working directory", "UMF_TOML"]);
    assert!(sandbox.variable("UMF_TOML", "umf.toml").load().is_ok(), "named, the same file is trusted");

    for key in ["PATH", "SYMBOL"] {
        let variable = format!("UMF_PROVIDER_X_{key}");
        let error = Sandbox::with_file(text).variable(&variable, "/opt/y.so").load().unwrap_err();
        assert!(matches!(error, Error::UntrustedPlugin { .. }), "{error}");
        names(&error.to_string(), &[&variable]);
    }

    let loader = Sandbox::new().loader().set("provider.x.kind", "plugin");
    assert!(loader.set("provider.x.path", "/opt/x.so").load().is_ok());
}

#[test]
fn the_working_directory_names_no_log_file_and_no_ptracer() {
    for (text, key) in [
        ("[log]\noutput = \"file,/tmp/x\"\n", "log.output"),
        ("[ipc]\nptracer = \"any\"\n", "ipc.ptracer"),
        ("[ipc]\nptracer = 1\n", "ipc.ptracer"),
    ] {
        assert!(Sandbox::with_file(text).load().is_ok(), "the user's file may");
        let sandbox = Sandbox::new();
        sandbox.write_cwd(text);
        let error = sandbox.load().unwrap_err();
        assert!(matches!(error, Error::UntrustedKey { .. }), "{error}");
        names(&error.to_string(), &[key, "cwd/umf.toml", "UMF_TOML", "environment"]);
        assert!(sandbox.variable("UMF_TOML", "umf.toml").load().is_ok(), "named, the same file is trusted");
    }
    let sandbox = Sandbox::new().variable("UMF_LOG_OUTPUT", "file,/tmp/x").variable("UMF_IPC_PTRACER", "any");
    sandbox.write_cwd("[log]\noutput = \"stderr\"\n");
    assert!(sandbox.load().is_ok());
}

#[test]
fn plugin_and_path_go_together() {
    let refusal = Sandbox::with_file("[provider.x]\nkind = \"plugin\"\n").refusal();
    names(&refusal, &["provider.x.kind", "provider.x.path"]);
    let refusal = Sandbox::with_file("[provider.x]\npath = \"/opt/x.so\"\n").refusal();
    names(&refusal, &["provider.x.path", "plugin"]);
    let refusal = Sandbox::with_file("[provider.x]\nsymbol = \"ops\"\n").refusal();
    names(&refusal, &["provider.x.symbol", "plugin"]);
}

#[test]
fn files_that_are_no_settings_are_refused() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.user(), vec![b'#'; 10 << 20]).unwrap();
    names(&sandbox.refusal(), &["umf.toml", &FILE_LIMIT.to_string()]);
    fs::write(sandbox.user(), b"[ipc]\n# \xff\n").unwrap();
    names(&sandbox.refusal(), &["umf.toml", "UTF-8", "offset 8"]);
    fs::write(sandbox.user(), "[ipc]\nlimit = \n").unwrap();
    names(&sandbox.refusal(), &["umf.toml", "TOML", "line 2"]);
    fs::remove_file(sandbox.user()).unwrap();
    fs::create_dir(sandbox.user()).unwrap();
    names(&sandbox.refusal(), &["umf.toml", "regular file"]);
    fs::remove_dir(sandbox.user()).unwrap();
    let status = std::process::Command::new("mkfifo").arg(sandbox.user()).status().unwrap();
    assert!(status.success());
    names(&sandbox.refusal(), &["umf.toml", "regular file"]);
}

#[test]
fn a_file_of_exactly_the_limit_is_read() {
    let limit = usize::try_from(FILE_LIMIT).unwrap();
    let sandbox = Sandbox::new();
    fs::write(sandbox.user(), vec![b'#'; limit]).unwrap();
    assert!(sandbox.load().is_ok());
    fs::write(sandbox.user(), vec![b'#'; limit + 1]).unwrap();
    assert!(sandbox.load().is_err());
}

#[test]
fn deep_and_huge_toml_is_an_error_not_a_crash() {
    for text in [
        format!("x = {}", "[".repeat(500_000)),
        format!("x = {}{}", "[".repeat(400_000), "]".repeat(400_000)),
        format!("x = {}", "{a=".repeat(300_000)),
        format!("x{} = 1", ".x".repeat(400_000)),
        format!("[x{}]", ".x".repeat(400_000)),
        format!("[provider.x.params{}]", ".x".repeat(400_000)),
        format!("[provider.x]\nparams = {{ a{} = 1 }}", ".x".repeat(400_000)),
        "[[x]]\n".repeat(100_000),
        format!("[ipc]\nopen_timeout_ms = {}", "9".repeat(500_000)),
        format!("[ipc]\n{} = 1", "k".repeat(900_000)),
        format!("[ipc]\nlimit = \"{}\"", "v".repeat(900_000)),
        format!("[provider.x]\n{}", "[provider.x.params.a.b.c]\n".repeat(10_000)),
    ] {
        let refusal = Sandbox::with_file(&text).refusal();
        assert!(refusal.chars().count() < 2_000, "the error is {} bytes long", refusal.len());
    }
}

#[test]
fn a_variable_that_is_not_unicode_is_an_error_that_names_it() {
    let odd = || OsString::from_vec(vec![b'a', 0xff]);
    let sandbox = Sandbox::new().variable("UMF_IPC_LIMIT", odd());
    names(&sandbox.refusal(), &["UMF_IPC_LIMIT", "ipc.limit", "UTF-8", "\"soft\""]);
    let mut sandbox = Sandbox::new().variable("UMF_LOG", odd()).variable("UMF_X", odd());
    sandbox.context.env.insert(OsString::from_vec(b"UMF_\xff".to_vec()), odd());
    assert_eq!(sandbox.loaded().warnings.len(), 3);
}

#[test]
fn params_in_a_variable_cannot_break_out_of_their_key() {
    for text in ["{}\n[log]\nlevel = 'debug'", "1", "{", "{} # x\nother = 1"] {
        let error = Sandbox::new().variable("UMF_PROVIDER_X_PARAMS", text).load().unwrap_err();
        assert!(matches!(error, Error::BadValue { .. }), "{error}");
    }
}
