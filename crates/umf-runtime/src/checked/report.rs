//! Reports of a checked pool: leaks when the pool is dropped or the process ends, and writes after
//! the free.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use allocator_api2::vec::Vec;
use umf_sync::fork;

use super::quarantine::poison;
use super::{CheckSettings, Checked, Leaks, Poison, Sites};
use crate::metadata::Mapped;
use crate::registry::PoolRegistry;
use umf_core::history::{EventKind, reason};
use umf_core::leaks::{LeakReport, LeakTime};
use umf_core::{Address, Error, Pool, Result};
use umf_os::output::write_to_stderr;
use umf_os::process::at_exit;
use umf_os::{background, output};

/// The pools that report leaks when the process ends.
static POOLS: PoolRegistry<Checked> = PoolRegistry::new(1 << 14);

/// Reports the leaks of all pools. Called by `exit(3)`.
extern "C" fn at_process_exit() {
    let report = |is_global: bool| {
        // Callbacks of the program may panic, and this function must not unwind.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            POOLS.for_each(|pool| {
                if pool.is_global == is_global && pool.process == fork::generation() {
                    pool.report_leaks(LeakTime::ProcessEnd);
                }
            });
        }));
    };
    // First the global allocator, whose report allocates nothing.
    report(true);
    let mut has_others = false;
    POOLS.for_each(|pool| has_others |= !pool.is_global && pool.process == fork::generation());
    if !has_others {
        return;
    }
    // In a new thread: the thread-local storage of this one may be destroyed, and a `tracing`
    // subscriber may use it.
    match background::spawn(c"umf-leaks", 2 << 20, move || report(false)) {
        Ok(thread) => thread.join(),
        Err(error) => write_to_stderr(&format_args!(
            "cannot report leaks at the end of the process: cannot start a thread: {error}; raise the limit of threads"
        )),
    }
}

impl Checked {
    /// Registers the pool for the report at the end of the process, if leaks are reported.
    ///
    /// # Errors
    /// As [`PoolRegistry::enter`].
    ///
    /// # Safety
    /// As [`PoolRegistry::enter`].
    pub(super) unsafe fn register_for_exit(&self) -> Result<()> {
        static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
        if matches!(self.settings.leaks, Leaks::Off) {
            return Ok(());
        }
        if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
            // If this fails, leaks are still reported when a pool is dropped.
            at_exit(at_process_exit);
        }
        // SAFETY: passed on to the caller.
        unsafe { POOLS.enter(NonNull::from(self)) }
    }

    pub(super) fn unregister_for_exit(&self) {
        if !matches!(self.settings.leaks, Leaks::Off) {
            POOLS.leave(NonNull::from(self));
        }
    }

    /// Calls `visit` with the live blocks. Returns whether they are known. Does not use the global
    /// allocator.
    pub(super) fn visit_leaks(&self, time: LeakTime, visit: &mut dyn FnMut(&LeakReport<'_>)) -> bool {
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
        // The counts of the pool are exact, and those of the sites may be a sample.
        let is_counted = self.inner.inspect().is_some_and(|inspect| {
            inspect.leaks(&mut |counted| {
                let LeakReport { blocks, bytes, sizes, .. } = *counted;
                visit(&LeakReport { blocks, bytes, sizes, ..report });
            })
        });
        if !is_counted && self.sites.is_some() {
            visit(&report);
        }
        is_counted || self.sites.is_some()
    }

    /// Reports the live blocks as leaks, if there are any and the settings ask for it.
    pub(super) fn report_leaks(&self, time: LeakTime) {
        if matches!(self.settings.leaks, Leaks::Off) {
            return;
        }
        self.visit_leaks(time, &mut |report| {
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

    /// Returns whether freed blocks are filled with poison.
    pub(super) const fn has_poison(&self) -> bool {
        !matches!(self.settings.poison, Poison::Off)
    }

    /// Reports a write to a block that is leaving the quarantine, if there was one.
    pub(super) fn check_poison(&self, address: Address, size: usize) {
        // SAFETY: the quarantine filled the block, so the CPU may access it, and it is still free.
        let difference = unsafe { poison::first_difference(address, size, CheckSettings::FREED_BYTE) };
        let Some(offset) = difference else { return };
        let by = self.history.last_free(address, self.now());
        let fault = Error::WrittenAfterFree { address, size, offset, by };
        self.record(EventKind::WrittenAfterFree, address, (size as u64, size as u64), reason(&fault));
        output::event(|| tracing::error!(pool = self.name(), "pool {}: {fault}", self.name()));
        if let Some(callback) = &self.settings.on_fault {
            callback.run(|call| call(&fault));
        }
    }
}
