//! [`RingSlot`]: a place in a ring that is written over again and again, while others read it.

use core::sync::atomic::{AtomicU64, Ordering};

use umf_sync::SequenceLock;
use umf_sync::chunks::Zeroable;

/// Words in a slot.
pub const SLOT_WORDS: usize = 5;

/// A place in a ring. Any number of threads may write and read it at one time.
#[derive(Debug)]
pub struct RingSlot {
    lock: SequenceLock,
    words: [AtomicU64; SLOT_WORDS],
}

// SAFETY: zeros are a slot that was never written.
unsafe impl Zeroable for RingSlot {}

impl RingSlot {
    /// Writes what stands at `position` of the ring (below 2^63). `false` if another thread is
    /// writing here at this moment, or something later is here: then it is lost.
    pub fn write(&self, position: u64, values: [u64; SLOT_WORDS]) -> bool {
        self.lock.record(position, || {
            self.words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        })
    }

    /// The position that was written here last, and what stands there; `None` if nothing does, or
    /// it is being written.
    #[must_use]
    pub fn read(&self) -> Option<(u64, [u64; SLOT_WORDS])> {
        self.lock.read_record(|| self.words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }
}
