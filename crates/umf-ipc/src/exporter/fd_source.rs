//! What the socket thread asks the exporter for.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::state::State;
use crate::lease::Exports;
use crate::transfer::socket::server::FdSource;

/// The exporter's state, as its socket thread holds it: the thread does not keep it alive.
pub(super) struct Source {
    pub exports: Arc<Exports>,
    pub state: Weak<State>,
}

impl FdSource for Source {
    fn ledger(&self) -> Arc<OwnedFd> {
        Arc::clone(self.exports.ledger.shared_fd())
    }

    fn door(&self) -> Arc<OwnedFd> {
        Arc::clone(self.exports.door.shared_fd())
    }

    fn announce(&self, row: u32, number: u32, importer: Option<OwnedFd>) -> bool {
        self.exports.announce(row, number, importer)
    }

    fn data(&self, slot: u32, generation: u64) -> Result<Arc<OwnedFd>, u64> {
        self.state.upgrade().map_or(Err(0), |state| state.fd_of(slot, generation))
    }
}
