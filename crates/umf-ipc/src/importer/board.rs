//! [`Board`]: the importer's own ledger, so that a process that exports nothing can be seen as well.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use umf_sync::{Lock, failpoint, fork};

use crate::ledger::{Figures, LedgerWriter};

/// Made when the first mapping is, gone when the importer is told to let go of what is idle and nothing is left. Without
/// one (no fd left for it, say) the importer works as well; it is only not seen.
#[derive(Debug, Default)]
pub(super) struct Board {
    ledger: Lock<Option<Posted>>,
    /// Whether something changed that statistics do not show yet: so that opens that change nothing
    /// take no lock here.
    news: AtomicBool,
}

#[derive(Clone, Debug)]
struct Posted {
    ledger: Arc<LedgerWriter>,
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
}

impl Board {
    /// Notes that a region was mapped.
    pub(super) fn opened(&self) {
        self.note(self.current_or_new());
    }

    /// Notes that a handle was refused; nowhere, if nothing was ever mapped.
    pub(super) fn refused(&self) {
        self.note(self.current());
    }

    fn note(&self, ledger: Option<Arc<LedgerWriter>>) {
        if let Some(ledger) = ledger {
            ledger.note_change();
            self.news.store(true, Ordering::Relaxed);
        }
    }

    /// As [`LedgerWriter::publish_statistics`].
    pub(super) fn publish(&self, figures: impl FnOnce() -> Figures) {
        if !self.news.load(Ordering::Relaxed) {
            return;
        }
        if let Some(ledger) = self.current() {
            self.news.store(false, Ordering::Relaxed);
            if !ledger.publish_statistics(true, figures) {
                self.news.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn fds(&self) -> u64 {
        u64::from(self.current().is_some())
    }

    /// Takes it down.
    pub(super) fn take_down(&self) {
        let posted = self.ledger.lock().take();
        if let Some(posted) = posted {
            posted.take_down();
        }
    }

    fn current(&self) -> Option<Arc<LedgerWriter>> {
        let posted = self.ledger.lock();
        posted.as_ref().filter(|posted| posted.belongs_here()).map(|posted| Arc::clone(&posted.ledger))
    }

    fn current_or_new(&self) -> Option<Arc<LedgerWriter>> {
        if let Some(ledger) = self.current() {
            return Some(ledger);
        }
        let ledger = match LedgerWriter::of_importer() {
            Ok(ledger) => Arc::new(ledger),
            Err(error) => {
                tracing::debug!(%error, "no ledger for the importer: it will not be seen by umf ps");
                return None;
            }
        };
        let posted = Posted { ledger: Arc::clone(&ledger), generation: fork::generation() };
        let before = {
            let mut place = self.ledger.lock();
            match place.as_ref().filter(|posted| posted.belongs_here()) {
                // Another thread was faster.
                Some(first) => return Some(Arc::clone(&first.ledger)),
                None => place.replace(posted),
            }
        };
        failpoint!("board.posted");
        if let Some(before) = before {
            before.take_down();
        }
        Some(ledger)
    }
}

impl Posted {
    fn belongs_here(&self) -> bool {
        self.generation == fork::generation()
    }

    fn take_down(self) {
        if self.belongs_here() {
            drop(self);
            failpoint!("board.taken_down");
            return;
        }
        // A parent's: nothing is mapped here, and where it was may be something else by now.
        core::mem::forget(self);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.take_down();
    }
}
