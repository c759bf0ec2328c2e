//! What is live at the end of the pool, or when somebody asks.

use core::fmt;

use allocator_api2::vec::Vec;
use umf_core::leaks::{LeakReport, LeakSize, LeakTime};
use umf_os::output;
use umf_os::output::write_to_stderr;
use umf_runtime::metadata::Mapped;

use crate::SlabPool;
use crate::classes::MAX_CLASSES;
use crate::span::Kind;
use crate::state::LIVE;
use crate::watch::Leaks;

impl SlabPool {
    /// Whether anybody wants to know.
    pub(crate) fn counts_leaks(&self) -> bool {
        !matches!(self.settings.watched.leaks, Leaks::Off)
    }

    /// Whether this is the process in which the pool was made, not a child of it.
    pub(super) fn is_at_home(&self) -> bool {
        self.watch.process == umf_sync::fork::generation()
    }

    /// Shows which blocks are live. Takes no memory from the global allocator.
    pub(crate) fn show_leaks(&self, time: LeakTime, look: &mut dyn FnMut(&LeakReport<'_>)) {
        let sizes = self.live_sizes();
        let knows_sites = matches!(self.settings.watched.leaks, Leaks::Sites);
        let sites = if knows_sites { self.watch.sites.live(self.watch.now()) } else { Vec::new_in(Mapped) };
        look(&LeakReport {
            pool: self.settings.name.as_str(),
            time,
            blocks: sizes.iter().map(|size| size.blocks).sum(),
            bytes: sizes.iter().map(|size| size.blocks * size.block_size).sum(),
            sizes: &sizes,
            sampled: if knows_sites { self.watch.sites.sample() } else { 0 },
            sites: &sites,
            is_global: self.watch.is_global,
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
        for span in (1..self.spans.end()).filter_map(|number| self.spans.get(number)) {
            let look = span.look(|states| states.next().is_some_and(|state| state & LIVE != 0));
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

    /// Tells whoever wants to know what was never freed, if anything was not.
    pub(crate) fn tell_leaks(&self, time: LeakTime) {
        if !self.counts_leaks() {
            return;
        }
        self.show_leaks(time, &mut |report| {
            if report.blocks == 0 {
                return;
            }
            self.warn(report);
            if let Some(hook) = &self.settings.watched.on_leaks {
                hook.call(report);
            }
        });
    }

    fn warn(&self, report: &LeakReport<'_>) {
        let text: &dyn fmt::Display = report;
        if self.watch.is_global {
            write_to_stderr(text);
        } else {
            let (pool, blocks, bytes) = (report.pool, report.blocks, report.bytes);
            output::event(|| tracing::warn!(pool, blocks, bytes, "{text}"));
        }
    }
}
