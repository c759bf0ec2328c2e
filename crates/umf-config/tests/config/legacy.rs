//! Variables that jobs already set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::sandbox::Sandbox;
use umf_config::{LogLevel, LogOutput, Origin, Warning};

#[test]
fn handle_limits_keep_their_names() {
    let sandbox = Sandbox::with_file("[ipc]\nmax_opened_handles = 3\n")
        .variable("UMF_MAX_OPENED_IPC_HANDLES", "10")
        .variable("UMF_MAX_CREATED_IPC_HANDLES", "20");
    let loaded = sandbox.loaded();
    let ipc = &loaded.settings.ipc;
    assert_eq!((ipc.max_opened_handles, ipc.max_created_handles), (10, 20));
    let origin = loaded.settings.origin("ipc.max_opened_handles");
    assert_eq!(origin, &Origin::Environment("UMF_MAX_OPENED_IPC_HANDLES".to_owned()));
    assert_eq!(loaded.warnings, []);
}

#[test]
fn an_invalid_limit_is_none_with_a_warning() {
    for text in ["many", "-1", "10x", "99999999999999999999"] {
        let sandbox = Sandbox::with_file("[ipc]\nmax_opened_handles = 3\n")
            .variable("UMF_MAX_OPENED_IPC_HANDLES", text);
        let loaded = sandbox.loaded();
        assert_eq!(loaded.settings.ipc.max_opened_handles, 0);
        let warning = loaded.warnings[0].to_string();
        assert!(warning.contains(text) && warning.contains("UMF_MAX_OPENED_IPC_HANDLES"), "{warning}");
        assert!(warning.contains("whole number"), "{warning}");
    }
}

#[test]
fn the_present_name_wins_over_the_older_one() {
    let loaded = Sandbox::new()
        .variable("UMF_MAX_OPENED_IPC_HANDLES", "10")
        .variable("UMF_IPC_MAX_OPENED_HANDLES", "11")
        .variable("UMF_POOL_DEFAULTS_MIN_BUCKET_SIZE", "16")
        .variable("UMF_POOL_DEFAULTS_MIN_BLOCK_SIZE", "32")
        .loaded();
    assert_eq!(loaded.settings.ipc.max_opened_handles, 11);
    assert_eq!(loaded.settings.pool.defaults.min_block_size.get(), 32);
    assert!(matches!(loaded.warnings[..], [Warning::Shadowed { .. }]), "{:?}", loaded.warnings);
}

#[test]
fn umf_log_keeps_its_grammar_and_gives_way_to_single_keys() {
    let loaded = Sandbox::with_file("[log]\npid = true\n")
        .variable("UMF_LOG", "level:debug;flush:info;output:file,/tmp/umf.log;timestamp:yes")
        .variable("UMF_LOG_LEVEL", "info")
        .loaded();
    let log = &loaded.settings.log;
    assert_eq!((log.level, log.flush), (LogLevel::Info, LogLevel::Info));
    assert_eq!(log.output, LogOutput::File("/tmp/umf.log".into()));
    assert!(log.timestamp && log.pid);
    assert_eq!(loaded.settings.origin("log.output"), &Origin::Environment("UMF_LOG".to_owned()));
    assert_eq!(loaded.warnings, []);
}

#[test]
fn umf_log_without_output_or_with_nonsense_logs_nothing_and_says_why() {
    for text in ["level:debug", "loud", "output:stderr;level:loud"] {
        let loaded = Sandbox::new().variable("UMF_LOG", text).loaded();
        assert_eq!(loaded.settings.log.output, LogOutput::Off);
        assert_eq!(loaded.settings.log.level, LogLevel::Error);
        let warning = loaded.warnings[0].to_string();
        assert!(
            warning.contains("UMF_LOG") && warning.contains("output:stderr|stdout|file,<path>"),
            "{warning}"
        );
    }
}

#[test]
fn variables_of_other_parts_are_recognised_and_no_warning() {
    let names = ["UMF_CONF", "UMF_CONF_FILE", "UMF_PROXY", "UMF_MEM_FD_FUNC", "UMF_ZE_LOADER_LIB_NAME"];
    let sandbox = names.iter().fold(Sandbox::new(), |sandbox, name| sandbox.variable(name, "x"));
    let loaded = sandbox.loaded();
    assert_eq!(loaded.warnings, []);
    let recognised: Vec<_> = loaded.settings.recognised().iter().map(|known| known.variable).collect();
    assert_eq!(recognised, names);
    assert_eq!(loaded.settings.recognised()[0].note, "recognised, handled by the C interface");
}

#[test]
fn an_unknown_variable_is_a_warning_with_the_likely_name() {
    let loaded = Sandbox::new()
        .variable("UMF_IPC_EXCHAGNE", "auto")
        .variable("UMF_SOMETHING_OF_OTHERS_ENTIRELY", "1")
        .variable("PATH", "/bin")
        .loaded();
    let closest = |variable: &str, closest: Option<&str>| Warning::UnknownVariable {
        variable: variable.to_owned(),
        closest: closest.map(ToOwned::to_owned),
    };
    assert_eq!(
        loaded.warnings,
        [
            closest("UMF_IPC_EXCHAGNE", Some("UMF_IPC_EXCHANGE")),
            closest("UMF_SOMETHING_OF_OTHERS_ENTIRELY", None),
        ]
    );
}
