//! What the socket thread asks the exporter for.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::state::State;
use crate::lease::Exports;
use crate::transfer::socket::server::{FdSource, Outgoing};

/// The exporter's state, as its socket thread holds it: the thread does not keep it alive.
pub(super) struct Source {
    pub exports: Arc<Exports>,
    pub state: Weak<State>,
}

impl FdSource for Source {
    fn ledger(&self) -> Arc<OwnedFd> {
        Arc::clone(self.exports.ledger.shared_fd())
    }

    fn lease_table(&self) -> Option<Outgoing> {
        let leases = &self.exports.leases;
        // Without a free descriptor, say: an importer can open what it gets anew itself, where it has `/proc`.
        let reopened = leases.reopen();
        Some(reopened.map_or_else(|_| Outgoing::Shared(Arc::clone(leases.shared_fd())), Outgoing::Own))
    }

    fn data(&self, slot: u32, generation: u64) -> Result<Arc<OwnedFd>, u64> {
        self.state.upgrade().map_or(Err(0), |state| state.fd_of(slot, generation))
    }
}
