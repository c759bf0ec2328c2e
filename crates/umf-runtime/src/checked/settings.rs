//! [`CheckSettings`]: the settings of a checked pool.

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use umf_core::leaks::LeakReport;
use umf_core::settings::ByteSize;
use umf_core::{Error, Pool, Result};
use umf_os::output;

umf_core::words! {
    /// The report about blocks that are live when a pool is dropped or the process ends.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Leaks {
        /// No report.
        #[default]
        Off = "off",
        /// The number of live blocks of each size. Costs nothing until the report, if the pool
        /// counts its blocks.
        Count = "count",
        /// Also the allocation sites. Recording a site takes microseconds
        /// ([`CheckSettings::leak_sample`]).
        Sites = "sites",
    }
}

umf_core::words! {
    /// The blocks that are filled with a byte, in host-accessible memory.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Poison {
        /// None.
        #[default]
        Off = "off",
        /// Freed blocks, with [`CheckSettings::FREED_BYTE`]. A later write to such a block is
        /// detected when the block leaves the quarantine.
        Freed = "freed",
        /// Freed blocks, and new blocks with [`CheckSettings::NEW_BYTE`].
        All = "all",
    }
}

type OnLeaks = dyn Fn(&LeakReport<'_>) + Send + Sync;
type OnFault = dyn Fn(&Error) + Send + Sync;

/// A callback of the program.
pub(super) struct Callback<F: ?Sized>(Arc<F>);

impl<F: ?Sized> Clone for Callback<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> Callback<F> {
    /// Runs `call` with the callback, and catches its panic: the caller is in the middle of an
    /// allocation or free, or drops the pool.
    pub(super) fn run(&self, call: impl FnOnce(&F)) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| call(&self.0))) {
            // Dropping the payload may panic again.
            core::mem::forget(payload);
            output::event(|| {
                tracing::error!("a report callback of a checked pool panicked; the pool goes on")
            });
        }
    }
}

impl<F: ?Sized> fmt::Debug for Callback<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a callback")
    }
}

umf_core::settings! {
    /// The checks of a pool. By default none.
    pub struct CheckSettings {
        /// This key and the four after it are for debugging (docs/debugging.md). Each costs time if
        /// it is set, and none otherwise. Events that the history keeps for each thread, 48 bytes
        /// each: allocations, frees, failed calls, trims; 0 is no history. With a history, a double
        /// free is reported with the earlier free.
        pub(super) history: u32 = 0,
            "a whole number from 0 to 1048576" if |events| *events <= CheckSettings::LONGEST_HISTORY;
        /// The report about blocks that are live when the pool is dropped or the process ends:
        /// "off", "count" (the number of each size; costs nothing until then), or "sites" (also
        /// where they were allocated; each allocation takes microseconds longer). It is logged as a
        /// warning; the report of a global allocator goes to standard error.
        pub leaks: Leaks = Leaks::Off;
        /// With leaks = "sites": the site of one in this many allocations is recorded.
        pub(super) leak_sample: u32 = 1, "a whole number from 1 to 4294967295" if |one_in| *one_in != 0;
        /// The blocks that are filled with a byte, in host-accessible memory: "off", "freed" (freed
        /// blocks; a later write is detected when the block leaves the quarantine), or "all" (also
        /// new blocks).
        pub(super) poison: Poison = Poison::Off;
        /// Bytes of freed blocks that are quarantined before they are reused, oldest first. 0 is
        /// none, or 1 MiB with poison. Blocks that are larger than this, or that other processes
        /// have open, are not quarantined. Quarantined bytes count towards the limits. A trim
        /// releases all of them, and so does an allocation that would fail otherwise.
        pub(super) quarantine: u64 as ByteSize = 0;
    }
    parts {
        pub(super) on_leaks: Option<Callback<OnLeaks>> = None;
        pub(super) on_fault: Option<Callback<OnFault>> = None;
    }
}

/// The default quarantine with poison, in bytes.
const POISON_QUARANTINE: u64 = 1 << 20;

impl CheckSettings {
    /// Returns whether all checks are off.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.history == 0 && matches!(self.leaks, Leaks::Off) && self.quarantine_bytes().is_none()
    }

    /// Returns the size of the quarantine in bytes; `None` without one.
    pub(super) const fn quarantine_bytes(&self) -> Option<u64> {
        match (self.quarantine, self.poison) {
            (0, Poison::Off) => None,
            (0, _) => Some(POISON_QUARANTINE),
            (bytes, _) => Some(bytes),
        }
    }

    /// Checks that the settings are in range, and that `pool` supports them.
    pub(super) fn check(&self, pool: &dyn Pool) -> Result<()> {
        if self.history > Self::LONGEST_HISTORY {
            return Err(Error::InvalidArgument { what: "history", why: "at most 1048576 events per thread" });
        }
        if !matches!(self.poison, Poison::Off) && !pool.provider().memory_kind().is_host_accessible() {
            let why = "must be \"off\": the CPU cannot fill memory of this provider; a quarantine works";
            return Err(Error::InvalidArgument { what: "poison", why });
        }
        if self.quarantine_bytes().is_some() && pool.deferred_free().is_none() {
            return Err(umf_core::pool::missing("a quarantine, which poison needs too,"));
        }
        // The first capture also makes the C library allocate what it needs.
        if matches!(self.leaks, Leaks::Sites) && umf_os::stack::capture().frames().next().is_none() {
            let what = "leaks = \"sites\", which captures stacks (use \"count\"),";
            return Err(Error::NotSupported { what, owner: "this C library", native: 0 });
        }
        Ok(())
    }

    /// The byte that freed blocks are filled with.
    pub const FREED_BYTE: u8 = 0xdd;
    /// The byte that new blocks are filled with.
    pub const NEW_BYTE: u8 = 0xcd;
    /// The largest `history`.
    pub const LONGEST_HISTORY: u32 = 1 << 20;

    /// Sets the callback for leaks. It is called with the live blocks, if there are any and
    /// [`CheckSettings::leaks`] is set. At the end of the process a separate thread calls it.
    /// Setting it allocates, so it is not for the global allocator.
    #[must_use]
    pub fn on_leaks(mut self, call: impl Fn(&LeakReport<'_>) + Send + Sync + 'static) -> Self {
        self.on_leaks = Some(Callback(Arc::new(call)));
        self
    }

    /// Sets the callback for the errors that [`CheckSettings::poison`] detects. The detecting
    /// thread calls it, possibly in the middle of an allocation or free. It must not drop the pool.
    /// A panic in it is caught and logged.
    #[must_use]
    pub fn on_fault(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_fault = Some(Callback(Arc::new(call)));
        self
    }
}
