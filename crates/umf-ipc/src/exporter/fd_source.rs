//! What the socket thread asks the exporter for.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::state::State;
use crate::lease::Exports;
use crate::transfer::socket::server::{FdSource, Outgoing, SharedFd};

/// The exporter's state, as its socket thread holds it: the thread does not keep it alive.
pub(super) struct Source {
    pub exports: Arc<Exports>,
    pub state: Weak<State>,
}

impl FdSource for Source {
    fn ledger(&self) -> Option<SharedFd> {
        Some(Arc::clone(self.exports.ledger.checked_fd().ok()?) as SharedFd)
    }

    fn lease_table(&self) -> Option<Outgoing> {
        let leases = &self.exports.leases;
        match leases.reopen() {
            Ok(own) => Some(Outgoing::Own(own)),
            // Without a free descriptor, say: an importer can open what it gets anew itself, where it has `/proc`.
            Err(_) => leases.checked_fd().ok().map(|fd| Outgoing::Shared(Arc::clone(fd) as SharedFd)),
        }
    }

    fn data(&self, slot: u32, generation: u64) -> Result<Arc<OwnedFd>, u64> {
        self.state.upgrade().map_or(Err(0), |state| state.fd_of(slot, generation))
    }
}
