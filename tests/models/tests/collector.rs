//! The collection of a dead producer's memory keeps its invariants. Without a rule, one fails.
//!
//! Run with `--nocapture` to read the traces. `UMF_MODELS_FULL=1` adds the longest explorations.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::env;
use std::time::Instant;

use umf_models::collector::{Collection, Fault, Rule};
use umf_models::explore;

/// Explores all states of `model`, and asserts that no invariant fails.
fn assert_holds(model: Collection) {
    let start = Instant::now();
    let explored = explore(&model);
    println!("{model:?}\n{explored} ({:.1?})", start.elapsed());
    assert!(explored.found.is_none(), "{explored}");
}

/// Asserts that `model` without the rules `left_out` violates the invariant `fault`.
fn assert_needed(model: Collection, left_out: &'static [Rule], fault: Fault) {
    let explored = explore(&Collection { left_out, only: Some(fault), ..model });
    println!("without {left_out:?}: {explored}");
    assert_eq!(explored.found.map(|violation| violation.fault), Some(fault), "{left_out:?}");
}

/// Returns a model with one importer and one collector.
fn one_each() -> Collection {
    Collection { importers: 1, collectors: 1, ..Collection::new() }
}

/// Returns a model with one importer, one collector, and a ticket of the producer.
fn sent() -> Collection {
    Collection { producer_sent: true, ..one_each() }
}

/// Returns a model with two importers that send tickets to each other, and one collector.
fn forwards() -> Collection {
    Collection { forwards: true, collectors: 1, ..Collection::new() }
}

#[test]
fn two_importers_and_two_collectors_keep_the_invariants() {
    assert_holds(Collection::new());
    assert_holds(Collection { hostile: true, ..Collection::new() });
}

#[test]
fn tickets_of_the_producer_keep_the_invariants() {
    assert_holds(Collection { producer_sent: true, ..Collection::new() });
    assert_holds(Collection { producer_sent: true, rows: 3, collectors: 1, ..Collection::new() });
}

#[test]
fn tickets_of_importers_keep_the_invariants() {
    assert_holds(forwards());
}

#[test]
fn larger_sizes_keep_the_invariants() {
    if env::var_os("UMF_MODELS_FULL").is_none() {
        println!("skipped: set UMF_MODELS_FULL=1 to run these explorations");
        return;
    }
    assert_holds(Collection { forwards: true, ..Collection::new() });
    assert_holds(Collection { forwards: true, producer_sent: true, ..Collection::new() });
    assert_holds(Collection { rows: 3, producer_sent: true, ..Collection::new() });
    assert_holds(Collection { rows: 3, producer_sent: true, ..forwards() });
}

#[test]
fn collection_of_a_live_producer_releases_its_memory() {
    assert_needed(one_each(), &[Rule::CollectOnlyDead], Fault::LivePunched);
}

/// The lock only saves the work of a second collector.
#[test]
fn collectors_at_the_same_time_are_harmless() {
    let left_out = &[Rule::LockTable];
    assert_holds(Collection { left_out, ..Collection::new() });
    assert_holds(Collection { left_out, producer_sent: true, ..Collection::new() });
}

#[test]
fn dead_set_after_the_scan_releases_open_memory() {
    assert_needed(one_each(), &[Rule::SetDeadBeforeScan], Fault::MappingPunched);
}

#[test]
fn height_loaded_before_dead_is_set_releases_open_memory() {
    assert_needed(one_each(), &[Rule::SetDeadBeforeHeight], Fault::MappingPunched);
}

#[test]
fn collection_without_dead_releases_memory_that_is_opened_later() {
    assert_needed(one_each(), &[Rule::SetDead], Fault::MappingPunched);
}

#[test]
fn collection_of_owned_rows_releases_open_memory() {
    assert_needed(one_each(), &[Rule::KeepOwned], Fault::MappingPunched);
    assert_needed(forwards(), &[Rule::KeepOwned], Fault::TicketPunched);
}

#[test]
fn rows_without_an_owner_that_count_keep_memory_forever() {
    assert_needed(one_each(), &[Rule::ResetUnowned], Fault::KeptForever);
}

#[test]
fn reset_of_unlocked_row_makes_words_negative() {
    assert_needed(Collection { importers: 2, ..one_each() }, &[Rule::LockBeforeReset], Fault::NegativeWord);
}

#[test]
fn tickets_that_outlive_their_row_open_released_memory() {
    assert_needed(sent(), &[Rule::ResetTickets], Fault::MappingPunched);
}

#[test]
fn lease_word_cleared_before_tickets_releases_open_memory() {
    assert_needed(Collection { collectors: 2, ..sent() }, &[Rule::ResetTicketsFirst], Fault::MappingPunched);
}

#[test]
fn scan_without_events_releases_open_memory() {
    assert_needed(forwards(), &[Rule::RescanIfCounted], Fault::MappingPunched);
}

#[test]
fn height_loaded_before_events_releases_open_memory() {
    assert_needed(Collection { rows: 3, ..forwards() }, &[Rule::EventsBeforeHeight], Fault::MappingPunched);
}

#[test]
fn rescan_with_the_first_height_releases_open_memory() {
    assert_needed(Collection { rows: 3, ..forwards() }, &[Rule::HeightOnRescan], Fault::MappingPunched);
}

#[test]
fn open_that_does_not_load_dead_opens_released_memory() {
    assert_needed(one_each(), &[Rule::LoadDead], Fault::MappingPunched);
}

#[test]
fn dead_loaded_before_the_add_opens_released_memory() {
    assert_needed(one_each(), &[Rule::AddBeforeDead], Fault::MappingPunched);
}

#[test]
fn lost_ticket_that_does_not_load_dead_opens_released_memory() {
    assert_needed(sent(), &[Rule::LoadDeadAfterClaim], Fault::MappingPunched);
}

#[test]
fn dead_that_is_believed_of_a_live_producer_refuses_its_handles() {
    let model = Collection { hostile: true, ..one_each() };
    assert_needed(model, &[Rule::BelieveIfUnlocked], Fault::LiveRefused);
}

#[test]
fn claim_that_loads_dead_loses_tickets() {
    assert_needed(forwards(), &[Rule::ClaimIsProof], Fault::TicketLost);
}
