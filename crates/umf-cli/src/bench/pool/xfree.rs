//! Blocks that one thread allocates and another one frees.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::allocator::Allocator;
use super::meeting::wait_until;
use super::orders::{BATCHES, Plan};
use super::script::Script;
use crate::bench::measure;
use crate::failure::Failure;

/// Portions on the way from one thread to another.
const PORTIONS: usize = 8;
const PORTION: usize = 64;

/// From one thread to another: portions of blocks in turn, so that what is measured is not the way.
struct Belt<B> {
    portions: [Mutex<Vec<(B, u32)>>; PORTIONS],
    filled: Line,
    emptied: Line,
    /// One of the two cannot go on.
    broken: AtomicBool,
}

/// A counter on a cache line of its own.
#[repr(align(128))]
struct Line(AtomicUsize);

impl<B> Belt<B> {
    fn new(portion: usize) -> Self {
        Belt {
            portions: std::array::from_fn(|_| Mutex::new(Vec::with_capacity(portion))),
            filled: Line(AtomicUsize::new(0)),
            emptied: Line(AtomicUsize::new(0)),
            broken: AtomicBool::new(false),
        }
    }

    /// Fills portion `number`; `false` if nobody takes it any more.
    fn fill<E>(
        &self,
        number: usize,
        mut fill: impl FnMut(&mut Vec<(B, u32)>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let broken = || self.broken.load(Ordering::Relaxed);
        wait_until(|| number < self.emptied.0.load(Ordering::Acquire) + PORTIONS || broken());
        if broken() {
            return Ok(false);
        }
        let mut portion = locked(&self.portions[number % PORTIONS]);
        let result = fill(&mut portion);
        drop(portion);
        self.filled.0.store(number + 1, Ordering::Release);
        result.inspect_err(|_| self.broken.store(true, Ordering::Relaxed)).map(|()| true)
    }

    /// Empties portion `number`; `false` if there will be none.
    fn empty<E>(&self, number: usize, empty: impl FnMut((B, u32)) -> Result<(), E>) -> Result<bool, E> {
        let filled = || number < self.filled.0.load(Ordering::Acquire);
        wait_until(|| filled() || self.broken.load(Ordering::Relaxed));
        if !filled() {
            return Ok(false);
        }
        let result = locked(&self.portions[number % PORTIONS]).drain(..).try_for_each(empty);
        self.emptied.0.store(number + 1, Ordering::Release);
        result.inspect_err(|_| self.broken.store(true, Ordering::Relaxed)).map(|()| true)
    }
}

/// Nobody panics with it.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Time on the wall per block, with as many pairs of threads as the plan has threads; what pairs do at the same time counts
/// once.
pub(super) fn run<A: Allocator>(allocator: &A, plan: &Plan) -> Result<Vec<f64>, Failure> {
    let portion = PORTION.min(plan.sizes.live / PORTIONS);
    let per_batch = plan.batch.div_ceil(portion);
    // The first batch is not measured.
    let portions = (BATCHES + 1) * per_batch;
    let belts: Vec<Belt<A::Block>> = (0..plan.threads).map(|_| Belt::new(portion)).collect();
    let values = measure::gather(2 * plan.threads, |thread| {
        let belt = &belts[thread / 2];
        if thread % 2 == 0 {
            let script = Script::new(&plan.sizes, thread / 2);
            for number in 0..portions {
                let fill = |blocks: &mut Vec<_>| {
                    for place in number * portion..(number + 1) * portion {
                        let size = script.size(place);
                        blocks.push((allocator.allocate(size)?, size as u32));
                    }
                    Ok(())
                };
                if !belt.fill(number, fill)? {
                    break;
                }
            }
            return Ok(Vec::new());
        }
        let mut values = Vec::with_capacity(BATCHES);
        let mut since = Instant::now();
        for number in 0..portions {
            // SAFETY: the other thread allocated it in that size, and does not use it.
            let free = |(block, size): (A::Block, u32)| unsafe { allocator.free(block, size as usize) };
            if !belt.empty(number, free)? {
                break;
            }
            if (number + 1) % per_batch == 0 {
                let now = Instant::now();
                if number >= per_batch {
                    let blocks = per_batch * portion * plan.threads;
                    values.push(now.duration_since(since).as_nanos() as f64 / blocks as f64);
                }
                since = now;
            }
        }
        Ok::<_, A::Error>(values)
    })?;
    Ok(values.concat())
}
