//! Giving memory back: all of it that is free, down to what is to be kept, or a part for those who share a limit.

use umf_core::Result;

use crate::JemallocPool;

impl JemallocPool {
    pub(crate) fn trim_to(&self, keep: usize) -> Result<usize> {
        if self.upstream.is_frozen() {
            return Ok(0);
        }
        self.upstream.poll();
        let keep = keep as u64;
        if self.free_bytes() <= keep {
            return Ok(0);
        }
        self.caches.flush();
        // What does not go as a whole region goes by its pages.
        self.purge_arenas();
        self.release_idle(keep)
    }

    /// Gives back so many bytes, if so many are free; returns how many went.
    pub(crate) fn give(&self, bytes: u64) -> u64 {
        if self.upstream.is_frozen() {
            return 0;
        }
        let free = self.free_bytes();
        let keep = usize::try_from(free.saturating_sub(bytes)).unwrap_or(usize::MAX);
        self.trim_to(keep).map_or(0, |went| went as u64)
    }
}
