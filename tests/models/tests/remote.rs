//! Reads of another machine are never stale, and writes do not stray. Without a rule, they do.
//!
//! Run with `--nocapture` to read the traces. `UMF_MODELS_FULL=1` adds the longest exploration.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::env;
use std::time::Instant;

use umf_models::remote::{Fault, Remote, Rule};
use umf_models::{Explored, explore};

/// Reads of both kinds, beside another block.
const READS: Remote = Remote { grants: 0, ..Remote::new() };
/// Grants, and reads by message.
const WRITES: Remote = Remote { generations: 2, one_sided: false, others: false, ..Remote::new() };

fn explored(model: Remote) -> Explored<Fault> {
    let start = Instant::now();
    let explored = explore(&model);
    println!("{model:?}\n{explored} ({:.1?})", start.elapsed());
    explored
}

fn assert_holds(model: Remote) {
    let explored = explored(model);
    assert!(explored.found.is_none(), "{explored}");
}

#[test]
fn reads_and_writes_keep_the_invariants() {
    assert_holds(Remote { generations: 2, messages: false, ..READS });
    assert_holds(Remote { one_sided: false, ..READS });
    assert_holds(WRITES);
    assert_holds(Remote { generations: 1, reads: 1, others: false, ..Remote::new() });
}

#[test]
fn larger_sizes_keep_the_invariants() {
    if env::var_os("UMF_MODELS_FULL").is_none() {
        println!("skipped: set UMF_MODELS_FULL=1 to run this exploration");
        return;
    }
    assert_holds(Remote { generations: 2, ..READS });
    assert_holds(Remote { generations: 2, others: false, ..Remote::new() });
}

#[test]
fn each_rule_is_needed() {
    for (left_out, model, fault) in [
        (&[Rule::ReadDataFirst], READS, Fault::Stale),
        (&[Rule::ReadNonceAlong], READS, Fault::Stale),
        (&[Rule::CompareNonce], READS, Fault::Stale),
        (&[Rule::CompareGeneration], READS, Fault::Stale),
        (&[Rule::CheckNonce], READS, Fault::Stale),
        (&[Rule::RetireFirst], READS, Fault::Stale),
        (&[Rule::RegisterGeneration], READS, Fault::Stale),
        (&[Rule::AddressMemory], READS, Fault::Stale),
        (&[Rule::KeepPages], READS, Fault::Stale),
        (&[Rule::KeepBuffers], READS, Fault::Stale),
        (&[Rule::CompareSession], READS, Fault::Stale),
        (&[Rule::KeepServerBuffers], WRITES, Fault::Stale),
        (&[Rule::DeferReuse], WRITES, Fault::StrayWrite),
        (&[Rule::LeaseFirst], WRITES, Fault::StrayWrite),
        (&[Rule::CheckGrantLast], WRITES, Fault::StrayWrite),
        (&[Rule::CompareGrant], WRITES, Fault::StrayWrite),
        (&[Rule::EndBetweenWrites], WRITES, Fault::StrayWrite),
    ] {
        let explored = explored(Remote { left_out, ..model });
        assert_eq!(explored.found.map(|violation| violation.fault), Some(fault), "{left_out:?}");
    }
}

#[test]
fn read_by_message_needs_its_lease_or_its_second_check() {
    const MESSAGES: Remote = Remote { generations: 2, one_sided: false, grants: 0, ..Remote::new() };
    assert_holds(Remote { left_out: &[Rule::LeaseFirst], ..MESSAGES });
    assert_holds(Remote { left_out: &[Rule::DeferReuse], ..MESSAGES });
    assert_holds(Remote { left_out: &[Rule::CheckAfterCopy], ..MESSAGES });
    for lease in [Rule::LeaseFirst, Rule::DeferReuse] {
        let left_out: &'static [Rule] = match lease {
            Rule::LeaseFirst => &[Rule::LeaseFirst, Rule::CheckAfterCopy],
            _ => &[Rule::DeferReuse, Rule::CheckAfterCopy],
        };
        let explored = explored(Remote { left_out, ..MESSAGES });
        assert_eq!(explored.found.map(|violation| violation.fault), Some(Fault::Stale), "{left_out:?}");
    }
}

/// Without a trim, a registration may serve several generations. So the trim is the reason for the
/// rule, and with the rule a trim needs none of its own.
#[test]
fn registration_of_several_generations_is_wrong_after_a_trim_only() {
    const TRIMLESS: Remote = Remote { generations: 2, trims: false, ..READS };
    assert_holds(Remote { left_out: &[Rule::RegisterGeneration], ..TRIMLESS });
}
