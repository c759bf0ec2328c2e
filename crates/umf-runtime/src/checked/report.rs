//! What is reported: leaks at the end of the pool or process, and faults.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use allocator_api2::vec::Vec;
use umf_sync::fork;

use super::{CheckSettings, Checked, Leaks, Poison, Sites, poison};
use crate::metadata::Mapped;
use crate::registry::PoolRegistry;
use umf_core::history::{EventKind, reason};
use umf_core::leaks::{LeakReport, LeakTime};
use umf_core::{Address, Error, Pool, Result};
use umf_os::output::write_to_stderr;
use umf_os::process::at_exit;
use umf_os::{background, output};

/// Pools that report leaks at the end of the process.
static POOLS: PoolRegistry<Checked> = PoolRegistry::new(1 << 14);

extern "C" fn end_of_process() {
    let tell = |is_global: bool| {
        // Callbacks are the program's, and nothing may unwind from here.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            POOLS.for_each(|pool| {
                if pool.is_global == is_global && pool.process == fork::generation() {
                    pool.tell_leaks(LeakTime::ProcessEnd);
                }
            });
        }));
    };
    // Nothing is allocated for what may be the global allocator.
    tell(true);
    let mut others = false;
    POOLS.for_each(|pool| others |= !pool.is_global && pool.process == fork::generation());
    if !others {
        return;
    }
    // In another thread: the thread-local values of this one may be gone, and subscribers of events
    // have such.
    match background::spawn(c"umf-leaks", 2 << 20, move || tell(false)) {
        Ok(thread) => thread.join(),
        Err(error) => write_to_stderr(&format_args!("no thread to report what was never freed: {error}")),
    }
}

impl Checked {
    /// # Safety
    /// As [`PoolRegistry::enter`].
    pub(super) unsafe fn watch_end_of_process(&self) -> Result<()> {
        static IS_PREPARED: AtomicBool = AtomicBool::new(false);
        if matches!(self.settings.leaks, Leaks::Off) {
            return Ok(());
        }
        if !IS_PREPARED.swap(true, Ordering::Relaxed) {
            // If it cannot be, ends of pools are reported all the same.
            at_exit(end_of_process);
        }
        // SAFETY: passed on to the caller.
        unsafe { POOLS.enter(NonNull::from(self)) }
    }

    pub(super) fn forget_end_of_process(&self) {
        if !matches!(self.settings.leaks, Leaks::Off) {
            POOLS.leave(NonNull::from(self));
        }
    }

    /// Passes the live blocks to `look`; whether they are known. Takes no memory from the global
    /// allocator.
    pub(super) fn show_leaks(&self, time: LeakTime, look: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
        let none = || (Vec::new_in(Mapped), Vec::new_in(Mapped));
        let (sizes, sites) = self.sites.as_ref().map_or_else(none, |sites| sites.live(self.now()));
        let report = LeakReport {
            pool: self.name(),
            time,
            blocks: sizes.iter().map(|size| size.blocks).sum(),
            bytes: sizes.iter().map(|size| size.blocks * size.block_size).sum(),
            sizes: &sizes,
            sampled: self.sites.as_ref().map_or(0, Sites::sample),
            sites: &sites,
            is_global: self.is_global,
        };
        let is_known = self.inner.inspect().is_some_and(|inspect| {
            inspect.leaks(&mut |counted| {
                let LeakReport { blocks, bytes, sizes, .. } = *counted;
                look(&LeakReport { blocks, bytes, sizes, ..report });
            })
        });
        if !is_known && self.sites.is_some() {
            look(&report);
        }
        is_known || self.sites.is_some()
    }

    /// Reports what was never freed, if that is to be reported and anything was not.
    pub(super) fn tell_leaks(&self, time: LeakTime) {
        if matches!(self.settings.leaks, Leaks::Off) {
            return;
        }
        self.show_leaks(time, &mut |report| {
            if report.blocks == 0 {
                return;
            }
            let text: &dyn fmt::Display = report;
            if self.is_global {
                write_to_stderr(text);
            } else {
                let (pool, blocks, bytes) = (report.pool, report.blocks, report.bytes);
                output::event(|| tracing::warn!(pool, blocks, bytes, "{text}"));
            }
            if let Some(callback) = &self.settings.on_leaks {
                callback.run(|call| call(report));
            }
        });
    }

    pub(super) const fn poisons(&self) -> bool {
        !matches!(self.settings.poison, Poison::Off)
    }

    /// Reports a block that leaves the quarantine and was written to meanwhile.
    pub(super) fn check_poison(&self, address: Address, size: usize) {
        // SAFETY: the quarantine filled the block, and has it alone.
        let Some(offset) = (unsafe { poison::find_other(address, size, CheckSettings::FREED_BYTE) }) else {
            return;
        };
        let by = self.history.last_free(address, self.now());
        let fault = Error::WrittenAfterFree { address, size, offset, by };
        self.record(EventKind::WrittenAfterFree, address, (size as u64, size as u64), reason(&fault));
        output::event(|| tracing::error!(pool = self.name(), "pool {}: {fault}", self.name()));
        if let Some(callback) = &self.settings.on_fault {
            callback.run(|call| call(&fault));
        }
    }
}
