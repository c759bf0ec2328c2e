//! [`LinkStatistics`]: counters of a link.

use crate::Engine;

/// A number of messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of all these messages.
    pub bytes: u64,
}

impl Carried {
    pub(crate) fn add(&mut self, length: usize) {
        self.messages += 1;
        self.bytes += length as u64;
    }

    const fn and(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }
}

/// Counters of one process on a link. Each process counts what it does itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStatistics {
    /// Messages that were sent, offered or handed over, withdrawn ones included.
    pub sent: Carried,
    /// Messages that were received, by engine: see [`LinkStatistics::received_by`].
    received: [Carried; Engine::ALL.len()],
    /// Messages that were received as a view.
    pub viewed: Carried,
    /// Chunks that this process, as the sender, copied into the receiver's memory.
    pub pushed: Carried,
    /// Chunks that this process, as the sender, copied into its bounce area.
    pub bounced: Carried,
    /// One-sided transfers to the peer's memory.
    pub put: Carried,
    /// One-sided transfers from the peer's memory.
    pub got: Carried,
    /// Requests of the peer that this process carried out: pieces of the peer's transfers.
    pub served: Carried,
    /// Messages that came before their receive.
    pub unexpected: Carried,
    /// Times that `cma` failed.
    pub refused_cma: u64,
    /// Times that memory of the peer could not be opened.
    pub refused_mapped: u64,
    /// Messages that were withdrawn by this process or by the peer.
    pub withdrawn: u64,
}

impl LinkStatistics {
    /// Returns the messages that were received by an engine.
    #[must_use]
    pub const fn received_by(&self, engine: Engine) -> Carried {
        self.received[engine as usize]
    }

    /// Returns the messages that were received by any engine or as a view.
    #[must_use]
    pub fn received(&self) -> Carried {
        self.received.iter().fold(self.viewed, |sum, one| sum.and(*one))
    }

    pub(crate) fn add_received(&mut self, engine: Engine, length: usize) {
        self.received[engine as usize].add(length);
    }
}
