//! What was never freed.

use umf_core::leaks::{LeakReport, LeakSize, LeakTime};
use umf_os::output;

use crate::JemallocPool;
use crate::classes::Class;

impl JemallocPool {
    /// Shows which blocks are live, by size.
    pub(crate) fn show_leaks(&self, time: LeakTime, look: &mut dyn FnMut(&LeakReport<'_>)) {
        let mut blocks = [0_u64; 256];
        self.each_block(|block| {
            if !block.is_held() {
                blocks[usize::from(block.class.number())] += 1;
            }
        });
        let mut sizes = [LeakSize { block_size: 0, blocks: 0 }; 256];
        let mut count = 0;
        for (number, &blocks) in (0..self.classes.count()).zip(&blocks).filter(|&(_, &blocks)| blocks > 0) {
            sizes[count] = LeakSize { block_size: self.classes.size(Class::new(number)) as u64, blocks };
            count += 1;
        }
        let sizes = &sizes[..count];
        look(&LeakReport {
            pool: umf_core::Pool::name(self),
            time,
            blocks: sizes.iter().map(|size| size.blocks).sum(),
            bytes: sizes.iter().map(|size| size.blocks * size.block_size).sum(),
            sizes,
            sampled: 0,
            sites: &[],
            is_global: false,
        });
    }

    /// The pool goes: says what was never freed, to whoever listens for details.
    pub(crate) fn tell_leaks(&self) {
        output::event(|| {
            if !tracing::enabled!(tracing::Level::DEBUG) || self.caches.counts().live_blocks() == 0 {
                return;
            }
            self.show_leaks(LeakTime::PoolEnd, &mut |report| {
                let (pool, blocks, bytes) = (report.pool, report.blocks, report.bytes);
                tracing::debug!(pool, blocks, bytes, "{report}");
            });
        });
    }
}
