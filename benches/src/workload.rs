//! The workloads: allocations and frees of the same sizes in the same order for every allocator.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

use crate::Result;
use crate::allocators::Allocator;
use crate::measure::{process_time, spin_until, thread_time, threads};

/// The result of a call of the allocator. Errors are boxed outside of the timed section.
type Outcome<T, A> = std::result::Result<T, <A as Allocator>::Error>;

/// Measured batches per run.
const BATCHES: usize = 8;
/// The smallest batch.
const MIN_BATCH: usize = 64;

/// A uniform distribution of sizes, and the number of live blocks.
#[derive(Clone, Copy)]
pub struct Sizes {
    min: usize,
    max: usize,
    /// Live blocks per thread.
    live: usize,
    /// Allocations in one batch of one thread.
    batch: usize,
}

/// 8 B to 4 KiB.
pub const SMALL: Sizes = Sizes { min: 8, max: 4 << 10, live: 1000, batch: 1 << 14 };
/// 1 KiB to 64 KiB.
pub const MIDDLE: Sizes = Sizes { min: 1 << 10, max: 64 << 10, live: 1000, batch: 1 << 13 };
/// 64 KiB to 4 MiB.
pub const LARGE: Sizes = Sizes { min: 64 << 10, max: 4 << 20, live: 200, batch: 1 << 12 };

/// The order in which blocks are allocated and freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each block is freed before the next is allocated.
    Pair,
    /// Of a live set, a random block is freed and another one allocated.
    Random,
    /// One thread allocates and another one frees.
    CrossFree,
    /// Like `Random`, with a new thread that takes over the live set after each term, while the old
    /// thread exits (Larson and Krishnan's server).
    Larson,
}

/// The workload of one run.
#[derive(Clone, Copy)]
pub struct Plan {
    order: Order,
    sizes: Sizes,
    threads: usize,
    batch: usize,
}

impl Plan {
    /// Returns a plan, with fewer blocks and shorter batches if it is quick.
    #[must_use]
    pub fn new(quick: bool, order: Order, mut sizes: Sizes, threads: usize) -> Plan {
        let mut batch = sizes.batch;
        if order == Order::CrossFree && sizes.live == LARGE.live {
            // Fewer large blocks fit between two threads.
            batch /= 4;
        }
        if quick {
            sizes.live /= 10;
            batch = (batch / 256).max(MIN_BATCH);
        }
        Plan { order, sizes, threads, batch }
    }

    /// Returns whether one thread allocates and frees everything.
    #[must_use]
    pub fn is_single_threaded(&self) -> bool {
        self.threads == 1 && matches!(self.order, Order::Pair | Order::Random)
    }
}

/// Runs a plan. Returns the nanoseconds of an allocation and its free, one value per batch and
/// thread.
pub(crate) fn run<A: Allocator>(allocator: &A, plan: &Plan) -> Result<Vec<f64>> {
    match plan.order {
        Order::CrossFree => Ok(cross_free(allocator, plan)),
        Order::Larson => larson(allocator, plan),
        Order::Pair | Order::Random => Ok(thread_local(allocator, plan)),
    }
}

/// Measures threads that allocate and free their own blocks: processor time of the thread.
fn thread_local<A: Allocator>(allocator: &A, plan: &Plan) -> Vec<f64> {
    let (ready, done) = (Barrier::new(plan.threads), AtomicUsize::new(0));
    let values = threads(plan.threads, |thread| {
        let mut set = Set::new(allocator, plan, thread).map_err(Into::into)?;
        set.run(plan.order, 2 * plan.batch).map_err(Into::into)?;
        ready.wait();
        let mut values = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let start = thread_time();
            set.run(plan.order, plan.batch).map_err(Into::into)?;
            values.push((thread_time() - start) / plan.batch as f64);
        }
        // All threads keep working until the last one has its values.
        done.fetch_add(1, Ordering::AcqRel);
        while done.load(Ordering::Acquire) < plan.threads {
            set.run(plan.order, MIN_BATCH).map_err(Into::into)?;
        }
        set.free().map_err(Into::into)?;
        Ok(values)
    });
    values.concat()
}

/// Measures threads that start, replace blocks of a set that another thread filled, and exit:
/// processor time of the process, including the start and exit of threads.
fn larson<A: Allocator>(allocator: &A, plan: &Plan) -> Result<Vec<f64>> {
    /// Batches per thread.
    const TERM: usize = 4;
    // The calling thread fills the sets and stays alive: it is the first owner of the blocks.
    let set = |thread| Set::new(allocator, plan, thread).map(Mutex::new);
    let sets = (0..plan.threads).map(set).collect::<Outcome<Vec<_>, A>>().map_err(Into::into)?;
    let work = || {
        let start = process_time();
        threads(plan.threads, |thread| {
            lock(&sets[thread]).run(Order::Random, TERM * plan.batch).map_err(Into::into)
        });
        (process_time() - start) / (TERM * plan.batch * plan.threads) as f64
    };
    work();
    let values = (0..BATCHES).map(|_| work()).collect();
    sets.iter().try_for_each(|set| lock(set).free()).map_err(Into::into)?;
    Ok(values)
}

/// Measures pairs of threads, of which one allocates and the other frees: wall time per block, over
/// all pairs.
fn cross_free<A: Allocator>(allocator: &A, plan: &Plan) -> Vec<f64> {
    /// Parts of a queue. Each has several blocks, so that the queue itself costs little.
    const PARTS: usize = 8;
    #[repr(align(128))]
    struct Line(AtomicUsize);
    struct Queue<B> {
        parts: [Mutex<Vec<(B, usize)>>; PARTS],
        filled: Line,
        emptied: Line,
    }
    let blocks = 64.min(plan.sizes.live / PARTS);
    let per_batch = plan.batch.div_ceil(blocks);
    // The first batch is not measured.
    let all = (BATCHES + 1) * per_batch;
    let new = |_| Queue::<A::Block> {
        parts: std::array::from_fn(|_| Mutex::new(Vec::with_capacity(blocks))),
        filled: Line(AtomicUsize::new(0)),
        emptied: Line(AtomicUsize::new(0)),
    };
    let queues: Vec<_> = (0..plan.threads).map(new).collect();
    let values = threads(2 * plan.threads, |thread| {
        let Queue { parts, filled, emptied } = &queues[thread / 2];
        let (mut values, mut start) = (Vec::with_capacity(BATCHES), Instant::now());
        if thread % 2 == 0 {
            let script = Script::new(&plan.sizes, thread / 2);
            for number in 0..all {
                spin_until(|| number < emptied.0.load(Ordering::Acquire) + PARTS);
                let mut part = lock(&parts[number % PARTS]);
                for step in number * blocks..(number + 1) * blocks {
                    let size = script.size(step);
                    part.push((allocator.allocate(size).map_err(Into::into)?, size));
                }
                drop(part);
                filled.0.store(number + 1, Ordering::Release);
            }
            return Ok(values);
        }
        for number in 0..all {
            spin_until(|| number < filled.0.load(Ordering::Acquire));
            for (block, size) in lock(&parts[number % PARTS]).drain(..) {
                // SAFETY: the other thread allocated it with this size, and does not use it.
                unsafe { allocator.free(block, size) }.map_err(Into::into)?;
            }
            emptied.0.store(number + 1, Ordering::Release);
            if (number + 1) % per_batch == 0 {
                if number >= per_batch {
                    let freed = per_batch * blocks * plan.threads;
                    values.push(start.elapsed().as_nanos() as f64 / freed as f64);
                }
                start = Instant::now();
            }
        }
        Ok(values)
    });
    values.concat()
}

/// Locks a mutex. Poisoning is ignored: no thread panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The live blocks of one thread, and its position in the script.
struct Set<'a, A: Allocator> {
    allocator: &'a A,
    script: Script,
    blocks: Vec<(A::Block, usize)>,
    step: usize,
}

impl<'a, A: Allocator> Set<'a, A> {
    fn new(allocator: &'a A, plan: &Plan, thread: usize) -> Outcome<Self, A> {
        let live = if plan.order == Order::Pair { 0 } else { plan.sizes.live };
        let script = Script::new(&plan.sizes, thread);
        let mut set = Set { allocator, script, blocks: Vec::with_capacity(live), step: live };
        for step in 0..live {
            set.blocks.push(set.allocate(step)?);
        }
        Ok(set)
    }

    #[inline]
    fn allocate(&self, step: usize) -> Outcome<(A::Block, usize), A> {
        let size = self.script.size(step);
        let block = self.allocator.allocate(black_box(size))?;
        Ok((black_box(block), size))
    }

    #[inline]
    fn free_one(&self, (block, size): (A::Block, usize)) -> Outcome<(), A> {
        // SAFETY: `allocate` returned it; it is freed once, and nothing uses it.
        unsafe { self.allocator.free(block, size) }
    }

    /// Runs `count` allocations and frees.
    fn run(&mut self, order: Order, count: usize) -> Outcome<(), A> {
        let steps = self.step..self.step + count;
        self.step = steps.end;
        if order == Order::Pair {
            for step in steps {
                self.free_one(self.allocate(step)?)?;
            }
            return Ok(());
        }
        for step in steps {
            let index = self.script.index(step);
            self.free_one(self.blocks[index])?;
            self.blocks[index] = self.allocate(step)?;
        }
        Ok(())
    }

    fn free(&mut self) -> Outcome<(), A> {
        std::mem::take(&mut self.blocks).into_iter().try_for_each(|block| self.free_one(block))
    }
}

/// The sizes and indices that a thread repeats: short enough to stay in its cache.
struct Script {
    sizes: [u32; Script::LENGTH],
    indices: [u32; Script::LENGTH],
}

impl Script {
    const LENGTH: usize = 1024;

    fn new(sizes: &Sizes, thread: usize) -> Script {
        // xorshift, seeded with the number of the thread.
        let mut random = 0x9E37_79B9_7F4A_7C15 ^ (thread as u64 + 1);
        let mut below = |limit: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            ((random >> 16) as usize % limit) as u32
        };
        Script {
            sizes: std::array::from_fn(|_| sizes.min as u32 + below(sizes.max - sizes.min)),
            indices: std::array::from_fn(|_| below(sizes.live)),
        }
    }

    /// Returns the size of a step. The next pass has a different size at the same index.
    #[inline]
    fn size(&self, step: usize) -> usize {
        self.sizes[(step + step / Self::LENGTH) % Self::LENGTH] as usize
    }

    /// Returns the index of the live block that a step replaces.
    #[inline]
    fn index(&self, step: usize) -> usize {
        self.indices[step % Self::LENGTH] as usize
    }
}
