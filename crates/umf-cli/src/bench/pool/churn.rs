//! How much memory is kept for how much that is asked for, after long use.
//!
//! Each allocator churns in a process of its own, where nothing else was allocated before.

use super::allocator::Allocator;
use super::script::{Random, Sizes};
use crate::bench::measure::told;
use crate::failure::Failure;

/// What an allocator is to do.
#[derive(Clone, Copy)]
pub(super) struct Churn {
    pub sizes: Sizes,
    /// Bytes that live all the time, as they are asked for.
    pub live: usize,
    /// Allocations after that.
    pub operations: usize,
}

/// Replaces random ones of a live set again and again; then, what the allocator has reserved for each byte that lives.
pub(super) fn run<A: Allocator>(allocator: &A, churn: &Churn) -> Result<Option<f64>, Failure> {
    let mut random = Random::new(0);
    let most = 2 * churn.live / churn.sizes.mean();
    // Written to once, so that it is there before the allocator is asked what it has.
    let mut blocks: Vec<Option<(A::Block, usize)>> = Vec::new();
    blocks.resize(most, None);
    blocks.clear();
    let Some(before) = allocator.reserved() else { return Ok(None) };
    let (mut live, mut done) = (0, 0);
    loop {
        while live < churn.live {
            let size = churn.sizes.draw(&mut random);
            blocks.push(Some((allocator.allocate(size).map_err(told)?, size)));
            live += size;
            done += 1;
        }
        if done >= churn.operations {
            break;
        }
        if let Some((block, size)) = blocks.swap_remove(random.below(blocks.len())) {
            // SAFETY: it lives and is not used.
            unsafe { allocator.free(block, size) }.map_err(told)?;
            live -= size;
        }
    }
    let reserved = allocator.reserved().map(|now| now.saturating_sub(before) as f64 / live as f64);
    for (block, size) in blocks.into_iter().flatten() {
        // SAFETY: it lives and is not used.
        unsafe { allocator.free(block, size) }.map_err(told)?;
    }
    Ok(reserved)
}
