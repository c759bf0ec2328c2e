//! [`CheckSettings`]: what can be set.

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use umf_core::leaks::LeakReport;
use umf_core::settings::ByteSize;
use umf_core::{Error, Pool, Result};
use umf_os::output;

umf_core::words! {
    /// What is reported of blocks that are live at the end of a pool or of the process.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Leaks {
        /// Nothing.
        #[default]
        Off = "off",
        /// How many there are of each size. Costs nothing before, if the pool counts them itself.
        Count = "count",
        /// Also where they were allocated: microseconds for each allocation whose site is recorded
        /// ([`CheckSettings::leak_sample`]).
        Sites = "sites",
    }
}

umf_core::words! {
    /// What is filled, in memory that the CPU may touch.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Poison {
        /// Nothing.
        #[default]
        Off = "off",
        /// Freed blocks, with [`CheckSettings::FREED_BYTE`]; a write to one is found when it leaves
        /// the quarantine.
        Freed = "freed",
        /// Also new blocks, with [`CheckSettings::NEW_BYTE`].
        All = "all",
    }
}

type OnLeaks = dyn Fn(&LeakReport<'_>) + Send + Sync;
type OnFault = dyn Fn(&Error) + Send + Sync;

/// A function of the program.
pub(super) struct Callback<F: ?Sized>(Arc<F>);

impl<F: ?Sized> Clone for Callback<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> Callback<F> {
    /// Runs `call` with the function, and catches its panic: a pool is in the middle of an
    /// allocation then, or of its end.
    pub(super) fn run(&self, call: impl FnOnce(&F)) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| call(&self.0))) {
            // Dropping it may panic again.
            core::mem::forget(payload);
            output::event(|| tracing::error!("a function for the reports of a checked pool panicked"));
        }
    }
}

impl<F: ?Sized> fmt::Debug for Callback<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}

umf_core::settings! {
    /// What is checked of a pool. Nothing, to begin with.
    pub struct CheckSettings {
        /// For finding mistakes (docs/debugging.md), as the four keys after it; each costs time,
        /// and what is off costs none. Events that the history of each thread keeps (48 bytes each:
        /// allocations, frees, refusals, trims); 0 for no history. A double free is then reported
        /// with the free before it.
        pub(super) history: u32 = 0,
            "a whole number from 0 to 1048576" if |events| *events <= CheckSettings::LONGEST_HISTORY;
        /// What is reported of blocks that are live when the pool goes or the process ends: "off",
        /// "count" (how many of each size; costs nothing before), or "sites" (and where they were
        /// allocated: microseconds for each allocation). It is logged as a warning; the report of a
        /// global allocator goes to standard error.
        pub leaks: Leaks = Leaks::Off;
        /// With leaks = "sites", the site of one in so many allocations is recorded.
        pub(super) leak_sample: u32 = 1, "a whole number from 1 to 4294967295" if |one_in| *one_in != 0;
        /// What is filled with a byte, in memory that the CPU may touch: "off", "freed" (a later
        /// write to it is found when the block leaves the quarantine), or "all" (new blocks too).
        pub(super) poison: Poison = Poison::Off;
        /// Bytes of freed blocks that wait, the oldest first, before they are used again. With
        /// poison at least 1 MiB. Larger blocks do not wait, nor do blocks that other processes
        /// have open. What waits counts against the limits; trimming ends the wait of all, and so
        /// does an allocation that would fail otherwise.
        pub(super) quarantine: u64 as ByteSize = 0;
    }
    parts {
        pub(super) on_leaks: Option<Callback<OnLeaks>> = None;
        pub(super) on_fault: Option<Callback<OnFault>> = None;
    }
}

/// The quarantine of poison alone.
const POISON_QUARANTINE: u64 = 1 << 20;

impl CheckSettings {
    /// Whether nothing is checked.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.history == 0 && matches!(self.leaks, Leaks::Off) && self.quarantine_bytes().is_none()
    }

    /// The bytes that wait, if any do.
    pub(super) const fn quarantine_bytes(&self) -> Option<u64> {
        match (self.quarantine, self.poison) {
            (0, Poison::Off) => None,
            (0, _) => Some(POISON_QUARANTINE),
            (bytes, _) => Some(bytes),
        }
    }

    pub(super) fn check(&self, pool: &dyn Pool) -> Result<()> {
        if self.history > Self::LONGEST_HISTORY {
            return Err(Error::InvalidArgument { what: "history", why: "at most 1048576 events per thread" });
        }
        if !matches!(self.poison, Poison::Off) && !pool.provider().memory_kind().is_host_accessible() {
            let why =
                "the CPU may not touch this provider's memory, and so cannot fill it: off; quarantine works";
            return Err(Error::InvalidArgument { what: "poison", why });
        }
        if self.quarantine_bytes().is_some() && pool.deferred_free().is_none() {
            return Err(umf_core::pool::missing("a quarantine (which poison needs too)"));
        }
        // (Also the first time, at which the C library may allocate.)
        if matches!(self.leaks, Leaks::Sites) && umf_os::stack::capture().frames().next().is_none() {
            let what = "finding out where something is allocated (leaks = sites; count works)";
            return Err(Error::NotSupported { what, owner: "this C library", native: 0 });
        }
        Ok(())
    }

    /// What freed blocks are filled with.
    pub const FREED_BYTE: u8 = 0xdd;
    /// What blocks are filled with that are handed out.
    pub const NEW_BYTE: u8 = 0xcd;
    /// The largest `history`.
    pub const LONGEST_HISTORY: u32 = 1 << 20;

    /// Sets a function that is called with what was never freed, if anything was not and
    /// [`CheckSettings::leaks`] is set; at the end of a process in a thread of its own. Setting one
    /// allocates: not for the global allocator.
    #[must_use]
    pub fn on_leaks(mut self, call: impl Fn(&LeakReport<'_>) + Send + Sync + 'static) -> Self {
        self.on_leaks = Some(Callback(Arc::new(call)));
        self
    }

    /// Sets a function that is called with each fault that [`CheckSettings::poison`] finds, by the
    /// thread that finds it, which may be in the middle of an allocation or free. It must not drop
    /// the pool. A panic in it is caught and logged.
    #[must_use]
    pub fn on_fault(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_fault = Some(Callback(Arc::new(call)));
        self
    }
}
