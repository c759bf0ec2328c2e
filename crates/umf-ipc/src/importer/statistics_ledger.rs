//! [`StatisticsLedger`]: a ledger that publishes the importer's counters, for `umf ps`.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use umf_sync::{Lock, failpoint, fork};

use crate::ledger::{LedgerWriter, PublishedCounters};

/// The importer's own ledger. The first mapping creates it. [`crate::Importer::evict_idle`] removes
/// it if no producer is left. If it cannot be created (for example without a free descriptor),
/// `umf ps` does not show the importer.
#[derive(Debug, Default)]
pub(super) struct StatisticsLedger {
    ledger: Lock<Option<ForkedLedger>>,
    /// Whether a counter has changed since it was published. Opens that change none take no lock.
    is_dirty: AtomicBool,
}

#[derive(Clone, Debug)]
struct ForkedLedger {
    ledger: Arc<LedgerWriter>,
    /// [`fork::generation`] of the process that made it.
    generation: u32,
}

impl StatisticsLedger {
    /// Notes that a region was mapped.
    pub(super) fn note_opened(&self) {
        self.note(self.current_or_new());
    }

    /// Notes that a handle was refused. Does nothing if there is no ledger.
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

    /// Removes the ledger.
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
            let mut installed = self.ledger.lock();
            match installed.as_ref().filter(|owned| owned.is_of_this_process()) {
                // Another thread was faster.
                Some(first) => return Some(Arc::clone(&first.ledger)),
                None => installed.replace(owned),
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
        // The parent's ledger: it is not mapped in this process, and its address may have been
        // reused.
        core::mem::forget(self);
    }
}

impl Drop for StatisticsLedger {
    fn drop(&mut self) {
        self.close();
    }
}
