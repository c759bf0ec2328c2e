//! Slabs: made out of units when a class has no free block left, taken apart when they are empty.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU8;

use umf_core::Result;
use umf_runtime::tracker;
use umf_sync::failpoint;

use crate::SlabPool;
use crate::extents::{GRANULE_UNITS, Range, UNIT};
use crate::span::Cold;

/// What the allocator of units has as the span of a slab: it is asked for large blocks only.
const NO_HOLDER: u32 = 0;

impl SlabPool {
    /// Makes a slab of the class and enters it.
    pub(crate) fn add_slab(&self, class: usize) -> Result<()> {
        let block = self.classes.size(class);
        let size = self.classes.slab_size(class, self.settings.slab_min_size);
        let total = size / block;
        let range = self.obtain((size / UNIT) as u32, GRANULE_UNITS, NO_HOLDER)?;
        let made = self.make_slab(class, range, block, size, total);
        if made.is_err() {
            self.give_range(range);
        }
        let number = made?;
        self.centrals[class].lock().add_slab(self.slabs(class), number);
        failpoint!("pool.slab_made");
        self.trace_slab("made", class, size);
        Ok(())
    }

    fn make_slab(&self, class: usize, range: Range, block: usize, size: usize, total: usize) -> Result<u32> {
        let (state_run, states) = self.meta.states.allocate(total)?;
        let words = total.div_ceil(64);
        let bitmap = self
            .meta
            .runs
            .allocate(words * size_of::<u64>())
            .inspect_err(|_| self.meta.states.release(state_run));
        let (table_run, bitmap) = bitmap?;
        let undo = || {
            self.meta.states.release(state_run);
            self.meta.runs.release(table_run);
        };
        let (number, span) = self.meta.allocate_span().inspect_err(|_| undo())?;
        // SAFETY: both runs are ours, and long enough.
        unsafe {
            states.as_ptr().write_bytes(0, total);
            let bitmap = bitmap.cast::<u64>().as_ptr();
            for word in 0..words {
                let bits = (total - word * 64).min(64);
                bitmap.add(word).write(u64::MAX >> (64 - bits));
            }
        }
        let lost = || {
            self.meta.release_span(number);
            undo();
        };
        let Some((base, region)) = self.region_of(range) else {
            lost();
            return Err(umf_core::Error::OutOfMemory { size, owner: "metadata", native: 0 });
        };
        // SAFETY: nobody else knows the number yet.
        unsafe {
            *span.cold() = Cold {
                free: total as u32,
                total: total as u32,
                unit: range.first,
                bitmap: bitmap.cast().as_ptr(),
                state_run: MaybeUninit::new(state_run),
                table_run: MaybeUninit::new(table_run),
                ..Cold::EMPTY
            };
        }
        let states: NonNull<AtomicU8> = states.cast();
        // SAFETY: `states` has `total` zeroed bytes in the arena.
        unsafe {
            span.publish_slab(class, range.region, base, total as u32, block as u64, states);
        }
        if let Err(error) = tracker::set_span(region, base, size, number) {
            let _ = tracker::set_span(region, base, size, range.region);
            span.retract();
            lost();
            return Err(error);
        }
        Ok(number)
    }

    /// Takes apart the slabs of a list, which the class no longer knows and whose blocks are all free.
    pub(crate) fn remove_slabs(&self, mut list: u32) {
        while let Some(span) = self.meta.span(list).filter(|_| list != 0) {
            // SAFETY: the slab is in no list any more but this one, which is ours.
            let cold = unsafe { *span.cold() };
            let number = core::mem::replace(&mut list, cold.next);
            let range = Range { region: span.region(), first: cold.unit };
            let class = span.class();
            let size = self.classes.slab_size(class, self.settings.slab_min_size);
            if let Some((base, region)) = self.region_of(range) {
                // Cannot fail: the granules are the region's, and the slab's alone.
                let _ = tracker::set_span(region, base, size, range.region);
            }
            span.retract();
            // SAFETY: a slab has both runs.
            unsafe {
                self.meta.states.release(cold.state_run.assume_init());
                self.meta.runs.release(cold.table_run.assume_init());
            }
            self.meta.release_span(number);
            failpoint!("pool.slab_removed");
            self.trace_slab("removed", class, size);
            self.give_range(range);
        }
    }
}
