//! [`StatisticsLedger`]: the importer's own ledger, so that a process that exports nothing can be seen as well.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use umf_sync::{Lock, failpoint, fork};

use crate::ledger::{LedgerWriter, PublishedCounters};

/// Made when the first mapping is, gone when the importer is told to let go of what is idle and
/// nothing is left. Without one (no fd left for it, say) the importer works as well; it is only not
/// seen.
#[derive(Debug, Default)]
pub(super) struct StatisticsLedger {
    ledger: Lock<Option<ForkedLedger>>,
    /// Whether something changed that statistics do not show yet: so that opens that change nothing
    /// take no lock here.
    is_dirty: AtomicBool,
}

#[derive(Clone, Debug)]
struct ForkedLedger {
    ledger: Arc<LedgerWriter>,
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
}

impl StatisticsLedger {
    /// Notes that a region was mapped.
    pub(super) fn note_opened(&self) {
        self.note(self.current_or_new());
    }

    /// Notes that a handle was refused; nowhere, if nothing was ever mapped.
    pub(super) fn note_refused(&self) {
        self.note(self.current());
    }

    fn note(&self, ledger: Option<Arc<LedgerWriter>>) {
        if let Some(ledger) = ledger {
            ledger.note_change();
            self.is_dirty.store(true, Ordering::Relaxed);
        }
    }

    /// As [`LedgerWriter::publish_statistics`].
    pub(super) fn publish(&self, counters: impl FnOnce() -> PublishedCounters) {
        if !self.is_dirty.load(Ordering::Relaxed) {
            return;
        }
        if let Some(ledger) = self.current() {
            self.is_dirty.store(false, Ordering::Relaxed);
            if !ledger.publish_statistics(true, counters) {
                self.is_dirty.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn fds(&self) -> u64 {
        u64::from(self.current().is_some())
    }

    /// Takes it down.
    pub(super) fn close(&self) {
        let owned = self.ledger.lock().take();
        if let Some(owned) = owned {
            owned.close();
        }
    }

    fn current(&self) -> Option<Arc<LedgerWriter>> {
        let owned = self.ledger.lock();
        owned.as_ref().filter(|owned| owned.is_of_this_process()).map(|owned| Arc::clone(&owned.ledger))
    }

    fn current_or_new(&self) -> Option<Arc<LedgerWriter>> {
        if let Some(ledger) = self.current() {
            return Some(ledger);
        }
        let ledger = match LedgerWriter::for_importer() {
            Ok(ledger) => Arc::new(ledger),
            Err(error) => {
                tracing::debug!(%error, "no ledger for the importer: it will not be seen by umf ps");
                return None;
            }
        };
        let owned = ForkedLedger { ledger: Arc::clone(&ledger), generation: fork::generation() };
        let before = {
            let mut place = self.ledger.lock();
            match place.as_ref().filter(|owned| owned.is_of_this_process()) {
                // Another thread was faster.
                Some(first) => return Some(Arc::clone(&first.ledger)),
                None => place.replace(owned),
            }
        };
        failpoint!("board.posted");
        if let Some(before) = before {
            before.close();
        }
        Some(ledger)
    }
}

impl ForkedLedger {
    fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }

    fn close(self) {
        if self.is_of_this_process() {
            drop(self);
            failpoint!("board.taken_down");
            return;
        }
        // A parent's: nothing is mapped here, and where it was may be something else by now.
        core::mem::forget(self);
    }
}

impl Drop for StatisticsLedger {
    fn drop(&mut self) {
        self.close();
    }
}
