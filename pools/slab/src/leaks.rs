//! Live blocks, by size.

use allocator_api2::vec::Vec;
use umf_core::Pool as _;
use umf_core::leaks::{LeakReport, LeakSize, LeakTime};
use umf_runtime::metadata::Mapped;

use crate::SlabPool;
use crate::classes::MAX_CLASSES;
use crate::span::{Kind, LIVE};

impl SlabPool {
    /// Shows which blocks are live. Takes no memory from the global allocator.
    pub(crate) fn show_leaks(&self, look: &mut dyn FnMut(&LeakReport<'_>)) {
        let sizes = self.live_sizes();
        look(&LeakReport {
            pool: self.name(),
            time: LeakTime::Asked,
            blocks: sizes.iter().map(|size| size.blocks).sum(),
            bytes: sizes.iter().map(|size| size.blocks * size.block_size).sum(),
            sizes: &sizes,
            sampled: 0,
            sites: &[],
            is_global: false,
        });
    }

    /// Live blocks by size. What there is no memory for is left out.
    fn live_sizes(&self) -> Vec<LeakSize, Mapped> {
        let mut blocks = [0_i64; MAX_CLASSES];
        self.counts(|class, allocations, frees| {
            blocks[class] = blocks[class].wrapping_add(allocations.wrapping_sub(frees).cast_signed());
        });
        let mut sizes = Vec::new_in(Mapped);
        let mut add = |block_size: u64, blocks: u64| {
            if sizes.try_reserve(1).is_ok() {
                sizes.push(LeakSize { block_size, blocks });
            }
        };
        for (class, &blocks) in blocks.iter().enumerate().filter(|&(_, &blocks)| blocks > 0) {
            add(self.classes.size(class) as u64, blocks.unsigned_abs());
        }
        for span in self.meta.spans().map(|(_, span)| span) {
            let look = span.snapshot(|states| states.next().is_some_and(|state| state & LIVE != 0));
            if let Some((look, true)) = look
                && look.kind == Kind::Direct
            {
                add(look.block, 1);
            }
        }
        sizes.sort_unstable_by_key(|size| size.block_size);
        sizes.dedup_by(|next, first| {
            let is_same = next.block_size == first.block_size;
            first.blocks += if is_same { next.blocks } else { 0 };
            is_same
        });
        sizes
    }
}
