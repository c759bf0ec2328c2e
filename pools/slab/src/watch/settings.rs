//! What can be set of all this.

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use umf_core::leaks::{LeakReport, Stack};
use umf_core::{Error, ProviderRef, Result};

use crate::SlabSettings;

/// What is told of blocks that are live at the end of a pool, or of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leaks {
    /// Nothing.
    #[default]
    Off,
    /// How many there are of each size. Costs nothing before.
    Count,
    /// And where they were allocated: microseconds for each allocation of which that is remembered
    /// ([`SlabSettings::leak_sample`]).
    Sites,
}

/// What is filled, in memory that the CPU may touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Poison {
    /// Nothing.
    #[default]
    Off,
    /// What is freed, with [`SlabSettings::FREED_BYTE`]; before it is used again it is looked at, and whoever wrote to it meanwhile
    /// is found.
    Freed,
    /// What is handed out too, with [`SlabSettings::NEW_BYTE`].
    All,
}

/// Is told what was never freed.
#[derive(Clone)]
pub(crate) struct LeakHook(Arc<dyn Fn(&LeakReport<'_>) + Send + Sync>);

/// Is told of mistakes that were found.
#[derive(Clone)]
pub(crate) struct FaultHook(Arc<dyn Fn(&Error) + Send + Sync>);

impl LeakHook {
    pub(super) fn call(&self, report: &LeakReport<'_>) {
        without_unwinding(|| (self.0)(report));
    }
}

impl FaultHook {
    pub(super) fn call(&self, fault: &Error) {
        without_unwinding(|| (self.0)(fault));
    }
}

/// Calls a function of the program, and catches its panic: a pool is in the middle of an allocation
/// then, or of its end.
fn without_unwinding(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // Dropping it may panic again.
        core::mem::forget(payload);
        umf_core::output::event(|| {
            tracing::error!("a function that a slab pool was given to report leaks or faults panicked");
        });
    }
}

impl fmt::Debug for LeakHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}

impl fmt::Debug for FaultHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}

/// What a pool is set to watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) history: u32,
    pub(crate) leaks: Leaks,
    pub(crate) leak_sample: u32,
    pub(crate) on_leaks: Option<LeakHook>,
    pub(crate) poison: Poison,
    pub(crate) quarantine: u64,
    pub(crate) on_fault: Option<FaultHook>,
}

impl Watched {
    /// Whether anything has to be known of each block.
    pub(crate) const fn each_block(&self) -> bool {
        self.history > 0
            || matches!(self.leaks, Leaks::Sites)
            || !matches!(self.poison, Poison::Off)
            || self.quarantine > 0
    }

    pub(crate) fn check(&self, provider: &ProviderRef) -> Result<()> {
        if self.history > SlabSettings::LONGEST_HISTORY {
            return Err(Error::InvalidArgument { what: "history", why: "at most 1048576 events per thread" });
        }
        if !matches!(self.poison, Poison::Off) && !provider.memory_kind().is_host_accessible() {
            let why =
                "the CPU may not touch this provider's memory, and so cannot fill it: off; quarantine works";
            return Err(Error::InvalidArgument { what: "poison", why });
        }
        // (Also the first time, at which the C library may allocate.)
        if matches!(self.leaks, Leaks::Sites) && Stack::capture().frames().next().is_none() {
            let what = "finding out where something is allocated (leaks = sites; count works)";
            return Err(Error::NotSupported { what, owner: "this C library", native: 0 });
        }
        Ok(())
    }
}

impl SlabSettings {
    /// What freed blocks are filled with.
    pub const FREED_BYTE: u8 = 0xdd;
    /// What blocks are filled with that are handed out.
    pub const NEW_BYTE: u8 = 0xcd;
    /// The largest `history`.
    pub const LONGEST_HISTORY: u32 = 1 << 20;

    /// How many events each thread's history keeps (48 bytes each): [`umf_core::Inspect::history`]. 0: there is none, and it costs nothing.
    /// With one a double free is told with the free before it ([`Error::FreedTwice`]). Default: 0.
    #[must_use]
    pub const fn history(mut self, events: u32) -> Self {
        self.watched.history = events;
        self
    }

    /// What is told of blocks that are live when the pool is dropped, or when the process ends with the pool still there: through
    /// `tracing`, as a warning, and to [`SlabSettings::on_leaks`]. A pool that is the global allocator writes it to
    /// standard error. Default: [`Leaks::Off`].
    #[must_use]
    pub const fn leaks(mut self, leaks: Leaks) -> Self {
        self.watched.leaks = leaks;
        self
    }

    /// With [`Leaks::Sites`], of one in how many allocations it is remembered where it was; 0 acts as 1. Default: 1.
    #[must_use]
    pub const fn leak_sample(mut self, one_in: u32) -> Self {
        self.watched.leak_sample = one_in;
        self
    }

    /// Is called with what was never freed, unless that is nothing; without [`SlabSettings::leaks`], never. At the end of a process that
    /// is in a thread of its own. (Setting one allocates: not for the global allocator.)
    #[must_use]
    pub fn on_leaks(mut self, call: impl Fn(&LeakReport<'_>) + Send + Sync + 'static) -> Self {
        self.watched.on_leaks = Some(LeakHook(Arc::new(call)));
        self
    }

    /// What is filled, so that mistakes show. Default: [`Poison::Off`].
    ///
    /// Of a block that was written to after it was freed, whoever would get it next is told ([`Error::WrittenAfterFree`], by
    /// `allocate`; the next one succeeds), and so are `tracing` and [`SlabSettings::on_fault`]; where it is found on its way out of
    /// quarantine, or before its slab or region goes, these alone.
    #[must_use]
    pub const fn poison(mut self, poison: Poison) -> Self {
        self.watched.poison = poison;
        self
    }

    /// Bytes of freed blocks that wait, the oldest first, before anybody gets them again; larger blocks do not. They count
    /// against the limits; trimming, and an allocation that would fail otherwise, ends it for all. Default: 0.
    #[must_use]
    pub const fn quarantine(mut self, bytes: u64) -> Self {
        self.watched.quarantine = bytes;
        self
    }

    /// Sets a function that is called with each mistake that [`SlabSettings::poison`] finds, by the
    /// thread that finds it. Of mistakes that are found at one time, in a `trim` say, the first 16 are
    /// passed to it, and the log has the number of the others. A panic in it is caught and logged.
    /// Setting one allocates: not for the global allocator.
    #[must_use]
    pub fn on_fault(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.watched.on_fault = Some(FaultHook(Arc::new(call)));
        self
    }
}
