//! The descriptors that importers get over the socket: ledger, lease table, and files of exports.

use std::os::fd::OwnedFd;
use std::sync::Weak;

use super::*;
use crate::transfer::socket::server::{FdSource, OutgoingFd, SharedFd};

impl ExporterState {
    /// Returns the file of an export that is current, or retired and leased.
    ///
    /// # Errors
    /// The slot's generation if the export is neither; 0 if its descriptor was lost.
    pub(in crate::exporter) fn fd_of(
        &self,
        slot: u32,
        generation: u64,
    ) -> core::result::Result<Arc<OwnedFd>, u64> {
        match self.fd_at(slot, generation) {
            // Retired. If it was sent with a ticket, its sender keeps it.
            Err(now) if Some(now) == generation.checked_add(1) && self.exports.leases.is_counted(slot) => {
                self.fd_at(slot, now)
            }
            found => found,
        }
    }

    /// Returns the file of the export in a slot that has this generation.
    ///
    /// # Errors
    /// As [`ExporterState::fd_of`].
    fn fd_at(&self, slot: u32, generation: u64) -> core::result::Result<Arc<OwnedFd>, u64> {
        let ledger = &self.exports.ledger;
        let region = ledger.region_of(slot, generation)?;
        // The native export is not cloned: its last owner returns it to the provider.
        let fd = self
            .cache
            .peek(&region, |entry| entry.value.native.as_ref().and_then(|native| native.checked_fd()))
            .unwrap_or_else(|| self.exports.deferred_fd(region));
        let now = ledger.generation_of(slot).unwrap_or(0);
        match fd {
            // If the slot still has the export after the look-up, the descriptor was that of the
            // export.
            Some(Ok(fd)) if now == generation => Ok(fd),
            Some(Err(error)) => {
                tracing::warn!(slot, %error, "cannot send an exported file to an importer");
                Err(0)
            }
            _ => Err(now),
        }
    }
}

/// Source of descriptors for the socket thread, which does not keep the exporter's state alive.
pub(super) struct ExporterFdSource {
    exports: Arc<ExportTable>,
    state: Weak<ExporterState>,
}

impl ExporterFdSource {
    pub(super) fn new(state: &Arc<ExporterState>) -> Self {
        Self { exports: Arc::clone(&state.exports), state: Arc::downgrade(state) }
    }
}

impl FdSource for ExporterFdSource {
    fn ledger(&self) -> Option<SharedFd> {
        Some(Arc::clone(self.exports.ledger.checked_fd().ok()?) as SharedFd)
    }

    fn lease_table(&self) -> Option<OutgoingFd> {
        let leases = &self.exports.leases;
        match leases.reopen() {
            Ok(reopened) => Some(OutgoingFd::Exclusive(reopened)),
            // For example without a free descriptor. An importer with `/proc` can reopen the shared
            // one.
            Err(_) => leases.checked_fd().ok().map(|fd| OutgoingFd::Shared(Arc::clone(fd) as SharedFd)),
        }
    }

    fn data(&self, slot: u32, generation: u64) -> Result<Arc<OwnedFd>, u64> {
        self.state.upgrade().map_or(Err(0), |state| state.fd_of(slot, generation))
    }
}
