//! [`Live`]: how many blocks of a foreign pool are handed out, counted where no two threads meet.

use core::sync::atomic::{AtomicI64, Ordering};

use umf_sync::thread;

const PARTS: usize = 32;

#[repr(align(128))]
struct Part(AtomicI64);

pub(super) struct Live([Part; PARTS]);

impl Live {
    pub(super) const fn new() -> Self {
        Self([const { Part(AtomicI64::new(0)) }; PARTS])
    }

    /// Adds to the part of the calling thread. A block may be freed in another thread: only the sum counts.
    pub(super) fn add(&self, blocks: i64) {
        let part = thread::current().map_or(0, thread::ThreadIndex::get) as usize % PARTS;
        self.0[part].0.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(super) fn sum(&self) -> usize {
        let sum: i64 = self.0.iter().map(|part| part.0.load(Ordering::Relaxed)).sum();
        usize::try_from(sum).unwrap_or(0)
    }
}
