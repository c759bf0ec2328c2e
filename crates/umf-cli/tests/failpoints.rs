//! The command that is released has no points at which it can be made to end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

/// The feature `failpoints` of umf-sync is for the kill matrix, which is built on its own. If some
/// package switched it on for the whole workspace, the variable's name would be in every program.
#[test]
fn the_command_knows_no_failpoints() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_umf")).unwrap();
    let has = |text: &[u8]| program.windows(text.len()).any(|window| window == text);
    assert!(has(b"UMF_IPC_EXCHANGE"), "names of variables are found where they are");
    // In two parts, lest it be found where it is looked for.
    assert!(!has(["UMF_", "FAILPOINTS"].concat().as_bytes()), "the feature failpoints is on");
}
