//! Threads that come and go, and free what others allocated: the workload of Larson and Krishnan's server.

use super::allocator::Allocator;
use super::orders::{BATCHES, Plan};
use super::script::Script;
use crate::bench::measure;
use crate::failure::Failure;
use crate::sys::clocks;

/// How many batches a thread works before it ends: its coming and going is to be seen, and not to be all.
const TERM: usize = 4;

/// Nanoseconds of the process's time per allocation and free, with the beginning and the end of each thread.
pub(super) fn run<A: Allocator>(allocator: &A, plan: &Plan) -> Result<Vec<f64>, Failure> {
    let count = TERM * plan.batch;
    let scripts: Vec<Script> = (0..plan.threads).map(|thread| Script::new(&plan.sizes, thread)).collect();
    let fill = |script: &Script| {
        (0..plan.sizes.live)
            .map(|number| Ok((allocator.allocate(script.size(number))?, script.size(number) as u32)))
            .collect::<Result<Vec<(A::Block, u32)>, A::Error>>()
    };
    let mut sets = scripts.iter().map(fill).collect::<Result<Vec<_>, _>>().map_err(measure::told)?;
    let mut values = Vec::with_capacity(BATCHES);
    let mut number = plan.sizes.live;
    for term in 0..=BATCHES {
        let start = clocks::process_time();
        sets = measure::gather(plan.threads, |thread| {
            let script = &scripts[thread];
            let mut blocks = sets[thread].clone();
            for number in number..number + count {
                let place = &mut blocks[script.place(number)];
                let (block, size) = *place;
                // SAFETY: it lives, is not used, and its place gets another one.
                unsafe { allocator.free(block, size as usize) }?;
                let size = script.size(number);
                *place = (allocator.allocate(size)?, size as u32);
            }
            Ok::<_, A::Error>(blocks)
        })?;
        number += count;
        // The first term is for warming up.
        if term > 0 {
            values.push((clocks::process_time() - start) / (count * plan.threads) as f64);
        }
    }
    for (block, size) in sets.concat() {
        // SAFETY: it lives and is not used.
        unsafe { allocator.free(block, size as usize) }.map_err(measure::told)?;
    }
    Ok(values)
}
