//! What allocators are asked to do.

use std::hint::black_box;
use std::time::Duration;

use super::measure::{self, Measured};
use crate::failure::Failure;
use crate::timing;

/// Somebody who allocates.
pub(super) trait Allocator: Sync {
    /// A block.
    type Block: Copy;

    /// What it says when it cannot; small, so that saying nothing costs nothing.
    type Error: std::fmt::Display + Send;

    /// Allocates `size` bytes.
    fn allocate(&self, size: usize) -> Result<Self::Block, Self::Error>;

    /// Frees a block.
    ///
    /// # Safety
    /// It came from `allocate(size)` of this allocator, was not freed since, and is not used any more.
    unsafe fn free(&self, block: Self::Block, size: usize) -> Result<(), Self::Error>;
}

/// A range of sizes and how many blocks of it live at a time.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub name: &'static str,
    pub least: usize,
    pub most: usize,
    pub live: usize,
}

/// Small blocks and large ones.
pub(super) const SIZES: [Sizes; 2] = [
    Sizes { name: "small", least: 8, most: 4 << 10, live: 1000 },
    Sizes { name: "large", least: 64 << 10, most: 4 << 20, live: 200 },
];

/// The order in which blocks are allocated and freed.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Each is freed before the next is allocated.
    Pair,
    /// 64 are allocated, and freed in reverse.
    Lifo,
    /// Of a live set, a random one is freed and allocated again in another size.
    Random,
}

/// All of them.
pub(super) const ORDERS: [(&str, Order); 3] =
    [("pair", Order::Pair), ("lifo", Order::Lifo), ("random", Order::Random)];

const STACK: usize = 64;
const SCRIPT: usize = 1024;

/// Nanoseconds per allocation and free, on each of `threads` threads.
pub(super) fn run<A: Allocator>(
    allocator: &A,
    sizes: Sizes,
    order: Order,
    threads: usize,
    time: Duration,
) -> Result<Measured, Failure> {
    measure::threads(threads, |thread| {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (thread as u64 + 1));
        let script: Vec<usize> = (0..SCRIPT).map(|_| random.size(sizes)).collect();
        match order {
            Order::Pair => timing::batches(time, || {
                for &size in &script {
                    let block = black_box(allocator.allocate(black_box(size))?);
                    // SAFETY: just allocated, and not used.
                    unsafe { allocator.free(block, size) }?;
                }
                Ok(SCRIPT as u64)
            }),
            Order::Lifo => {
                let mut stack = Vec::with_capacity(STACK);
                timing::batches(time, || {
                    for part in script.chunks_exact(STACK) {
                        for &size in part {
                            stack.push((black_box(allocator.allocate(black_box(size))?), size));
                        }
                        while let Some((block, size)) = stack.pop() {
                            // SAFETY: allocated above, and not used.
                            unsafe { allocator.free(block, size) }?;
                        }
                    }
                    Ok(SCRIPT as u64)
                })
            }
            Order::Random => {
                let mut live = Vec::with_capacity(sizes.live);
                for _ in 0..sizes.live {
                    let size = random.size(sizes);
                    live.push((allocator.allocate(size)?, size));
                }
                let places: Vec<usize> = (0..SCRIPT).map(|_| random.below(sizes.live)).collect();
                let mut turn = 0_usize;
                let values = timing::batches(time, || {
                    // Other sizes for the same places in the next batch.
                    turn += 1;
                    for (number, &place) in places.iter().enumerate() {
                        let (block, size) = live[place];
                        // SAFETY: it lives, is not used, and its place gets another one.
                        unsafe { allocator.free(block, size) }?;
                        let size = script[(number + turn) % SCRIPT];
                        live[place] = (black_box(allocator.allocate(black_box(size))?), size);
                    }
                    Ok::<u64, A::Error>(SCRIPT as u64)
                });
                for (block, size) in live {
                    // SAFETY: it lives and is not used.
                    unsafe { allocator.free(block, size) }?;
                }
                values
            }
        }
    })
}

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }

    fn size(&mut self, sizes: Sizes) -> usize {
        sizes.least + self.below(sizes.most - sizes.least)
    }
}
