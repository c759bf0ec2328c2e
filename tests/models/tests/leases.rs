//! The lease protocol keeps its invariants. Without a rule, an invariant fails.
//!
//! Run with `--nocapture` to read the traces. `UMF_MODELS_FULL=1` adds the longest exploration.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::env;
use std::time::Instant;

use umf_models::explore;
use umf_models::leases::{Fault, Leases, Rule};

/// Explores all states of `model`, and asserts that no invariant fails.
fn assert_holds(model: Leases) {
    let start = Instant::now();
    let explored = explore(&model);
    println!("{model:?}\n{explored} ({:.1?})", start.elapsed());
    assert!(explored.found.is_none(), "{explored}");
}

/// Asserts that `model` without the rules `left_out` violates the invariant `fault`.
fn assert_needed(model: Leases, left_out: &'static [Rule], fault: Fault) {
    let explored = explore(&Leases { left_out, only: Some(fault), ..model });
    println!("without {left_out:?}: {explored}");
    assert_eq!(explored.found.map(|violation| violation.fault), Some(fault), "{left_out:?}");
}

/// Returns a model with two importers of one thread each, and two rows.
fn two_importers() -> Leases {
    Leases::new([1, 1])
}

/// Returns a model with one importer of two threads, and two rows.
fn two_threads() -> Leases {
    Leases::new([2, 0])
}

#[test]
fn two_importers_keep_the_invariants() {
    assert_holds(two_importers());
}

#[test]
fn two_threads_keep_the_invariants() {
    assert_holds(two_threads());
}

#[test]
fn rows_that_share_a_bit_keep_the_invariants() {
    assert_holds(Leases { rows: 3, bits: 2, other_scan: true, ..two_importers() });
    assert_holds(Leases { bits: 1, ..two_importers() });
}

#[test]
fn four_threads_on_two_rows_keep_the_invariants() {
    assert_holds(Leases { other_scan: true, ..Leases::new([2, 2]) });
}

#[test]
fn three_threads_on_three_rows_keep_the_invariants() {
    assert_holds(Leases { rows: 3, bits: 2, ..Leases::new([2, 1]) });
}

#[test]
fn four_threads_on_three_rows_keep_the_invariants() {
    if env::var_os("UMF_MODELS_FULL").is_none() {
        println!("skipped: set UMF_MODELS_FULL=1 to run this exploration");
        return;
    }
    assert_holds(Leases { rows: 3, bits: 2, other_scan: true, ..Leases::new([2, 2]) });
    assert_holds(Leases { rows: 4, bits: 2, ..two_importers() });
}

#[test]
fn scan_before_retire_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::RetireBeforeScan], Fault::MemoryReused);
}

#[test]
fn height_loaded_before_retire_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::HeightAfterRetire], Fault::MemoryReused);
}

#[test]
fn bitmap_loaded_before_retire_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::BitmapAfterRetire], Fault::MemoryReused);
}

#[test]
fn scan_of_one_row_per_bit_reuses_open_memory() {
    let model = Leases { rows: 3, bits: 2, ..two_importers() };
    assert_needed(model, &[Rule::ScanAllRowsOfBit], Fault::MemoryReused);
}

#[test]
fn scan_that_skips_owned_rows_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::WaitForOwner], Fault::MemoryReused);
}

#[test]
fn deferred_scan_that_skips_its_row_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::CursorStays], Fault::MemoryReused);
}

#[test]
fn sum_over_rows_with_close_in_another_row_reuses_open_memory() {
    let left_out = &[Rule::JudgeRowsSeparately, Rule::CloseInRowOfMapping];
    assert_needed(two_threads(), left_out, Fault::MemoryReused);
    assert_needed(two_threads(), left_out, Fault::HeldForever);
}

#[test]
fn sum_over_rows_is_harmless_if_no_word_is_negative() {
    assert_holds(Leases { left_out: &[Rule::JudgeRowsSeparately], ..two_threads() });
    assert_holds(Leases { left_out: &[Rule::JudgeRowsSeparately], ..Leases::new([2, 2]) });
}

#[test]
fn close_in_another_row_makes_words_negative_and_holds_memory_forever() {
    assert_needed(two_threads(), &[Rule::CloseInRowOfMapping], Fault::NegativeWord);
    assert_needed(two_threads(), &[Rule::CloseInRowOfMapping], Fault::HeldForever);
}

#[test]
fn reap_of_unlocked_row_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::LockBeforeReap], Fault::MemoryReused);
}

#[test]
fn reap_after_failed_lock_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::NoReapWithoutLock], Fault::MemoryReused);
}

#[test]
fn concurrent_reaps_of_a_row_reuse_open_memory() {
    let model = Leases { other_scan: true, ..two_importers() };
    assert_needed(model, &[Rule::SerializeReaps], Fault::MemoryReused);
}

#[test]
fn bitmap_cleared_after_publish_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::ClearBitmapBeforePublish], Fault::MemoryReused);
}

#[test]
fn taken_row_that_is_not_cleared_holds_memory_forever() {
    assert_needed(two_importers(), &[Rule::ClearTakenRow], Fault::IdleRowCounts);
    assert_needed(two_importers(), &[Rule::ClearTakenRow], Fault::HeldForever);
}

#[test]
fn open_before_height_is_raised_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::RaiseBeforeOpen], Fault::MemoryReused);
}

#[test]
fn bit_set_after_load_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::SetBitBeforeLoad], Fault::MemoryReused);
}

/// The load must come after both, but their order does not matter.
#[test]
fn bit_set_between_add_and_load_is_harmless() {
    let left_out = &[Rule::SetBitBeforeAdd];
    assert_holds(Leases { rows: 3, left_out, ..two_importers() });
    assert_holds(Leases { other_scan: true, left_out, ..Leases::new([2, 2]) });
}

#[test]
fn add_after_load_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::AddBeforeLoad], Fault::MemoryReused);
}

#[test]
fn row_given_back_in_use_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::KeepRowInUse], Fault::MemoryReused);
}

#[test]
fn memo_that_outlives_its_table_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::MemoEndsWithTable], Fault::MemoryReused);
}

#[test]
fn memo_that_outlives_its_generation_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::MemoEndsWithGeneration], Fault::MemoryReused);
}

#[test]
fn row_cleared_after_unlock_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::ClearBeforeUnlock], Fault::MemoryReused);
}

#[test]
fn lost_lock_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::LockLasts], Fault::MemoryReused);
}

#[test]
fn lock_shared_by_importers_reuses_open_memory() {
    assert_needed(two_importers(), &[Rule::OwnDescriptions], Fault::MemoryReused);
}
