//! The orders in which blocks are allocated and freed, and how a thread's time in them is taken.

use std::hint::black_box;

use super::allocator::Allocator;
use super::meeting::{Meeting, Presence};
use super::script::{Script, Sizes};
use super::{larson, xfree};
use crate::bench::measure;
use crate::failure::Failure;
use crate::sys::clocks;

/// How many batches of one run are measured.
pub(super) const BATCHES: usize = 8;

/// The order in which blocks are allocated and freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Order {
    /// Each is freed before the next is allocated.
    Pair,
    /// 64 are allocated, and freed in reverse.
    Lifo,
    /// Of a live set, the oldest is freed and another one allocated.
    Fifo,
    /// Of a live set, a random one is freed and another one allocated.
    Random,
    /// One thread allocates and another one frees.
    CrossFree,
    /// As `Random`; again and again the live set goes to a new thread, and the old one ends.
    Larson,
}

/// What an allocator is to do in one run.
#[derive(Clone, Copy)]
pub(in crate::bench) struct Plan {
    pub order: Order,
    pub sizes: Sizes,
    pub threads: usize,
    /// Every page of every block is written to.
    pub touched: bool,
    /// Allocations of one thread in a batch.
    pub batch: usize,
}

/// Nanoseconds per allocation and free: one value for each batch of each thread.
pub(in crate::bench) fn run<A: Allocator>(allocator: &A, plan: &Plan) -> Result<Vec<f64>, Failure> {
    match plan.order {
        Order::CrossFree => xfree::run(allocator, plan),
        Order::Larson => larson::run(allocator, plan),
        _ => {
            let meeting = Meeting::new(plan.threads);
            let values = measure::gather(plan.threads, |thread| {
                let mut presence = meeting.enter();
                play(allocator, plan, thread, |play| timed(plan, &mut presence, play))
            })?;
            Ok(values.concat())
        }
    }
}

/// The thread's processor time, batch by batch.
fn timed<E>(
    plan: &Plan,
    presence: &mut Presence<'_>,
    play: &mut dyn FnMut(usize) -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    play(2 * plan.batch)?;
    presence.begin();
    let mut values = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let start = clocks::thread_time();
        play(plan.batch)?;
        values.push((clocks::thread_time() - start) / plan.batch as f64);
    }
    // Until the last one has its values, everybody keeps it company.
    presence.done();
    while !presence.all_are_done() {
        play(STACK)?;
    }
    Ok(values)
}

const STACK: usize = 64;

/// Prepares what a thread needs for one of the orders that it plays by itself, hands `using` what plays so many allocations
/// and frees, and frees what lives then.
pub(super) fn play<A: Allocator, R>(
    allocator: &A,
    plan: &Plan,
    thread: usize,
    using: impl FnOnce(&mut dyn FnMut(usize) -> Result<(), A::Error>) -> Result<R, A::Error>,
) -> Result<R, A::Error> {
    let script = Script::new(&plan.sizes, thread);
    let allocate = |number: usize| {
        let size = script.size(number);
        Ok((black_box(allocator.allocate(black_box(size))?), size as u32))
    };
    // SAFETY: it was allocated by the function above, is freed once, and is not used.
    let free = |(block, size): (A::Block, u32)| unsafe { allocator.free(block, size as usize) };
    let mut number = 0;
    let mut blocks = Vec::with_capacity(plan.sizes.live.max(STACK));
    if matches!(plan.order, Order::Fifo | Order::Random) {
        for _ in 0..plan.sizes.live {
            blocks.push(allocate(number)?);
            number += 1;
        }
    }
    let mut oldest = 0;
    let result = using(&mut |count| {
        match plan.order {
            Order::Pair => {
                for number in number..number + count {
                    free(allocate(number)?)?;
                }
            }
            Order::Lifo => {
                for first in (number..number + count).step_by(STACK) {
                    for number in first..first + STACK {
                        blocks.push(allocate(number)?);
                    }
                    while let Some(block) = blocks.pop() {
                        free(block)?;
                    }
                }
            }
            Order::Fifo => {
                for number in number..number + count {
                    free(blocks[oldest])?;
                    blocks[oldest] = allocate(number)?;
                    oldest += 1;
                    if oldest == blocks.len() {
                        oldest = 0;
                    }
                }
            }
            Order::Random | Order::CrossFree | Order::Larson => {
                for number in number..number + count {
                    let place = &mut blocks[script.place(number)];
                    free(*place)?;
                    *place = allocate(number)?;
                }
            }
        }
        number += count;
        Ok(())
    })?;
    blocks.drain(..).try_for_each(free)?;
    Ok(result)
}
