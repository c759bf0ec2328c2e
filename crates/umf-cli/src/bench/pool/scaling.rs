//! How much many threads get done together.

use std::time::Instant;

use super::allocator::Allocator;
use super::meeting::Meeting;
use super::orders::{self, Plan};
use crate::bench::measure;
use crate::failure::Failure;

/// Allocations and frees per second of all threads together, each of which does `count`: from when the first begins to when
/// the last is done.
pub(super) fn throughput<A: Allocator>(allocator: &A, plan: &Plan, count: usize) -> Result<f64, Failure> {
    let meeting = Meeting::new(plan.threads);
    let times = measure::gather(plan.threads, |thread| {
        let mut presence = meeting.enter();
        orders::play(allocator, plan, thread, |play| {
            play(plan.batch)?;
            presence.begin();
            let start = Instant::now();
            play(count)?;
            Ok((start, Instant::now()))
        })
    })?;
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, end)| *end).max();
    let elapsed = first.zip(last).map_or(0.0, |(first, last)| last.duration_since(first).as_secs_f64());
    Ok((plan.threads * count) as f64 / elapsed)
}
