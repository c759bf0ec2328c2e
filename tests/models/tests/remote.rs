//! Reads of another machine are never stale, and writes do not stray. Without a rule, they do.
//!
//! Run with `--nocapture` to read the traces. `UMF_MODELS_FULL=1` adds the longest exploration.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::env;
use std::time::Instant;

use umf_models::explore;
use umf_models::remote::{Fault, Remote, Rule};

fn assert_holds(model: Remote) {
    let start = Instant::now();
    let explored = explore(&model);
    println!("{model:?}\n{explored} ({:.1?})", start.elapsed());
    assert!(explored.found.is_none(), "{explored}");
}

#[test]
fn reads_and_writes_keep_the_invariants() {
    assert_holds(Remote { generations: 2, ..Remote::new() });
    assert_holds(Remote { writes: false, ..Remote::new() });
}

#[test]
fn larger_sizes_keep_the_invariants() {
    if env::var_os("UMF_MODELS_FULL").is_none() {
        println!("skipped: set UMF_MODELS_FULL=1 to run this exploration");
        return;
    }
    assert_holds(Remote::new());
}

#[test]
fn each_rule_is_needed() {
    for (rule, fault) in [
        (Rule::ReadDataFirst, Fault::Stale),
        (Rule::ReadNonceAlong, Fault::Stale),
        (Rule::CompareNonce, Fault::Stale),
        (Rule::CompareGeneration, Fault::Stale),
        (Rule::RetireFirst, Fault::Stale),
        (Rule::UnregisterBeforeTrim, Fault::Stale),
        (Rule::KeepBuffers, Fault::Stale),
        (Rule::DeferFree, Fault::StrayWrite),
        (Rule::CloseGrantFirst, Fault::StrayWrite),
    ] {
        let explored = explore(&Remote { left_out: Some(rule), ..Remote::new() });
        println!("without {rule:?}: {explored}");
        assert_eq!(explored.found.map(|violation| violation.fault), Some(fault), "{rule:?}");
    }
}
