//! The ticket protocol keeps its invariants. Without a rule, an invariant fails.
//!
//! Each rule is left out at the smallest sizes that show the fault. Run with `--nocapture` to read
//! the traces. `UMF_MODELS_FULL=1` adds the longest explorations.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::env;
use std::time::Instant;

use umf_models::explore;
use umf_models::tickets::{Fault, Rule, Tickets};

/// Explores all states of `model`, and asserts that no invariant fails.
fn assert_holds(model: Tickets) {
    let start = Instant::now();
    let explored = explore(&model);
    println!("{model:?}\n{explored} ({:.1?})", start.elapsed());
    assert!(explored.found.is_none(), "{explored}");
}

/// Asserts that `model` without the rules `left_out` violates the invariant `fault`.
fn assert_needed(model: Tickets, left_out: &'static [Rule], fault: Fault) {
    let explored = explore(&Tickets { left_out, only: Some(fault), ..model });
    println!("without {left_out:?}: {explored}");
    assert_eq!(explored.found.map(|violation| violation.fault), Some(fault), "{left_out:?}");
}

/// Returns a model with two importers and the producer. Each has a row. Two of them exist.
fn two_rows() -> Tickets {
    Tickets { rows: 2, bits: 2, ..Tickets::new() }
}

/// Returns a model with two importers and the producer. Each has one of three rows, and importers
/// open only tickets.
fn tickets_only() -> Tickets {
    Tickets { plain: false, ..Tickets::new() }
}

/// Returns a model with one importer and the producer, which have a row each.
fn producer_sends() -> Tickets {
    Tickets { threads: [1, 0], ..two_rows() }
}

/// Returns a model with one importer, which has the only row and opens its own tickets.
fn one_row() -> Tickets {
    Tickets { rows: 1, bits: 1, threads: [1, 0], producer_sends: false, ..Tickets::new() }
}

/// Returns a model with one importer, which has both rows and opens its own tickets.
fn both_rows() -> Tickets {
    Tickets { rows: 2, bits: 2, rows_each: 2, ..one_row() }
}

#[test]
fn two_importers_keep_the_invariants() {
    assert_holds(two_rows());
    assert_holds(Tickets { bits: 1, ..two_rows() });
    assert_holds(tickets_only());
}

#[test]
fn two_readers_keep_the_invariants() {
    assert_holds(Tickets { readers: 2, ..two_rows() });
}

#[test]
fn two_tickets_in_a_row_keep_the_invariants() {
    assert_holds(Tickets { words: 2, ..two_rows() });
}

#[test]
fn two_threads_keep_the_invariants() {
    assert_holds(Tickets { threads: [2, 0], ..two_rows() });
}

#[test]
fn tickets_in_another_row_keep_the_invariants() {
    assert_holds(both_rows());
    assert_holds(Tickets { rows: 3, bits: 2, ..both_rows() });
}

#[test]
fn larger_sizes_keep_the_invariants() {
    if env::var_os("UMF_MODELS_FULL").is_none() {
        println!("skipped: set UMF_MODELS_FULL=1 to run these explorations");
        return;
    }
    assert_holds(Tickets::new());
    assert_holds(Tickets { bits: 2, readers: 2, ..tickets_only() });
    assert_holds(Tickets { rows: 3, bits: 3, threads: [1, 1], ..both_rows() });
    assert_holds(Tickets { threads: [2, 0], words: 2, readers: 2, ..two_rows() });
}

#[test]
fn scan_without_events_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::RescanIfCounted], Fault::MemoryReused);
}

/// A lease can move from a row to a ticket to another row, behind the scan each time.
#[test]
fn second_pass_does_not_replace_events() {
    let model = Tickets { passes: 2, ..tickets_only() };
    assert_needed(model, &[Rule::RescanIfCounted], Fault::MemoryReused);
}

#[test]
fn height_loaded_before_events_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::EventsBeforeHeight], Fault::MemoryReused);
}

#[test]
fn bitmap_loaded_before_events_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::EventsBeforeBitmap], Fault::MemoryReused);
}

#[test]
fn rescan_with_the_first_height_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::HeightOnRescan], Fault::MemoryReused);
}

#[test]
fn rescan_with_the_first_bitmap_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::BitmapOnRescan], Fault::MemoryReused);
}

#[test]
fn reset_of_unlocked_row_reuses_open_memory() {
    assert_needed(one_row(), &[Rule::LockBeforeReset], Fault::MemoryReused);
}

#[test]
fn own_row_without_owner_loses_tickets() {
    assert_needed(producer_sends(), &[Rule::OwnRowIsOwned], Fault::TicketLost);
    assert_needed(producer_sends(), &[Rule::OwnRowIsOwned], Fault::TicketMemoryReused);
}

#[test]
fn tickets_that_outlive_their_row_open_reused_memory() {
    assert_needed(one_row(), &[Rule::ResetTickets], Fault::MemoryReused);
}

#[test]
fn lease_word_cleared_before_tickets_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::ResetTicketsFirst], Fault::MemoryReused);
}

#[test]
fn claim_before_add_reuses_open_memory() {
    assert_needed(one_row(), &[Rule::AddBeforeClaim], Fault::MemoryReused);
}

#[test]
fn count_before_add_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::AddBeforeCount], Fault::MemoryReused);
}

#[test]
fn claim_before_count_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::CountBeforeClaim], Fault::MemoryReused);
}

#[test]
fn claim_without_count_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::CountClaims], Fault::MemoryReused);
}

#[test]
fn bit_set_after_count_reuses_open_memory() {
    assert_needed(producer_sends(), &[Rule::SetBitBeforeCount], Fault::MemoryReused);
}

/// Both must precede the count, but their order does not matter.
#[test]
fn bit_set_between_add_and_count_is_harmless() {
    let left_out = &[Rule::SetBitBeforeAdd];
    assert_holds(Tickets { left_out, ..two_rows() });
    assert_holds(Tickets { left_out, ..tickets_only() });
}

#[test]
fn claim_by_load_and_store_opens_a_ticket_twice() {
    let left_out = &[Rule::ClaimByCompareExchange];
    assert_needed(Tickets { threads: [2, 0], ..one_row() }, left_out, Fault::ClaimedTooOften);
    assert_needed(Tickets { readers: 2, ..two_rows() }, left_out, Fault::MemoryReused);
}

#[test]
fn claim_that_compares_the_generation_refuses_retired_blocks() {
    assert_needed(one_row(), &[Rule::OpenRetired], Fault::TicketLost);
}

#[test]
fn equal_numbers_lose_tickets_and_open_reused_memory() {
    assert_needed(one_row(), &[Rule::DistinctNumbers], Fault::TicketLost);
    assert_needed(one_row(), &[Rule::DistinctNumbers], Fault::MemoryReused);
}

#[test]
fn ticket_without_hold_reuses_memory() {
    assert_needed(one_row(), &[Rule::HoldTicket], Fault::TicketMemoryReused);
}

#[test]
fn hold_added_after_store_reuses_open_memory() {
    assert_needed(both_rows(), &[Rule::HoldBeforeStore], Fault::MemoryReused);
}

#[test]
fn hold_added_after_count_reuses_memory_of_tickets() {
    assert_needed(both_rows(), &[Rule::HoldBeforeCount], Fault::TicketMemoryReused);
}

#[test]
fn count_after_store_reuses_open_memory() {
    assert_needed(both_rows(), &[Rule::CountBeforeStore], Fault::MemoryReused);
}

#[test]
fn forward_without_count_reuses_memory_of_tickets() {
    assert_needed(both_rows(), &[Rule::CountForwards], Fault::TicketMemoryReused);
}

/// The mapping and the hold are in the same word.
#[test]
fn forward_without_count_is_harmless_in_the_row_of_the_mapping() {
    let left_out = &[Rule::CountForwards];
    assert_holds(Tickets { left_out, ..two_rows() });
    assert_holds(Tickets { left_out, ..tickets_only() });
}

#[test]
fn hold_without_bit_reuses_memory_of_tickets() {
    assert_needed(producer_sends(), &[Rule::SetBitOfHold], Fault::TicketMemoryReused);
    assert_needed(both_rows(), &[Rule::SetBitOfHold], Fault::TicketMemoryReused);
}

#[test]
fn bit_of_hold_set_after_count_reuses_memory_of_tickets() {
    assert_needed(both_rows(), &[Rule::SetBitOfHoldBeforeCount], Fault::TicketMemoryReused);
}

#[test]
fn forward_after_close_reuses_memory_of_tickets() {
    assert_needed(one_row(), &[Rule::KeepMapping], Fault::TicketMemoryReused);
}

#[test]
fn hold_released_by_the_opener_is_lost_with_it() {
    assert_needed(producer_sends(), &[Rule::ReleaseBySender], Fault::HeldForever);
}

#[test]
fn hold_that_is_not_released_holds_memory_forever() {
    assert_needed(one_row(), &[Rule::ReleaseClaimed], Fault::HeldForever);
}

#[test]
fn row_released_with_tickets_loses_them() {
    assert_needed(one_row(), &[Rule::KeepRowWithTickets], Fault::TicketLost);
}

#[test]
fn forked_child_that_drops_a_ticket_loses_it() {
    assert_needed(one_row(), &[Rule::ChildKeepsTickets], Fault::TicketLost);
    assert_needed(one_row(), &[Rule::ChildKeepsTickets], Fault::MemoryReused);
}
