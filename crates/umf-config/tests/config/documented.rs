//! The checked-in `umf.toml` is true: it names every key, says nothing, and shows the defaults.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::sandbox::Sandbox;
use umf_config::{Origin, Settings, known_keys};

const FILE: &str = include_str!("../../../../umf.toml");

/// The file with its keys taken out of their comments.
fn awake() -> String {
    let lines = FILE.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase()) => key,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn as_it_lies_it_says_nothing() {
    let loaded = Sandbox::with_file(FILE).loaded();
    assert_eq!(loaded.warnings, []);
    assert!(loaded.settings.report().iter().all(|row| row.origin == Origin::Default));
    assert_eq!(values(&loaded.settings), values(&Settings::default()));
}

#[test]
fn with_every_key_set_it_equals_the_defaults() {
    let mut sandbox = Sandbox::new();
    // Plugin keys are part of it, so it has to be a file that is trusted.
    std::fs::write(sandbox.system(), awake()).unwrap();
    sandbox.context.cwd = None;
    let settings = sandbox.loaded().settings;
    assert_eq!(values(&settings), values(&Settings::default()));
    let unset: Vec<_> = settings
        .report()
        .into_iter()
        .filter(|row| row.origin == Origin::Default && row.key != "provider.host.params")
        .map(|row| row.key)
        .collect();
    assert!(unset.is_empty(), "not in umf.toml: {unset:?}");
}

#[test]
fn it_mentions_every_key_and_older_name() {
    for key in known_keys() {
        let name = key.key.rsplit('.').next().unwrap();
        let set = format!("#{name} = ");
        let is_name = name == "<name>" && FILE.contains("[shared_limits]");
        assert!(is_name || FILE.lines().any(|line| line.starts_with(&set)), "{}", key.key);
        assert!(key.alias.is_none_or(|alias| FILE.contains(alias)), "{:?}", key.alias);
    }
}

fn values(settings: &Settings) -> Vec<(String, String)> {
    let rows = settings.report().into_iter();
    rows.map(|row| (row.key, row.value)).collect()
}
