//! [`LinkStatistics`]: what a link has carried.

use crate::Engine;

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// How many.
    pub messages: u64,
    /// How many bytes they had together.
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

/// What one side of a link (or a half of it) has done. Each side counts what it does itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStatistics {
    /// Messages that were sent, handed over or withdrawn.
    pub sent: Carried,
    /// Messages that were received, by engine: see [`LinkStatistics::received_by`].
    received: [Carried; Engine::ALL.len()],
    /// Messages that were received as a view.
    pub viewed: Carried,
    /// Chunks that this side, sending, copied into the receiver's memory.
    pub pushed: Carried,
    /// Chunks that this side, sending, copied into bounce buffers.
    pub bounced: Carried,
    /// One-sided transfers to the peer's memory.
    pub put: Carried,
    /// From it.
    pub got: Carried,
    /// Requests of the peer that this side has carried out for it: pieces of its transfers. Counted for both halves together.
    pub served: Carried,
    /// Messages that came before they were asked for.
    pub unexpected: Carried,
    /// Times that CMA was refused where it should have done, and another engine did it.
    pub refused_cma: u64,
    /// Times that memory of the peer could not be opened, and another engine did it.
    pub refused_mapped: u64,
    /// Messages that were withdrawn: their sender waited no longer.
    pub withdrawn: u64,
}

impl LinkStatistics {
    /// Messages that were received by an engine.
    #[must_use]
    pub const fn received_by(&self, engine: Engine) -> Carried {
        self.received[engine as usize]
    }

    /// Messages that were received, by whatever engine, or as a view.
    #[must_use]
    pub fn received(&self) -> Carried {
        self.received.iter().fold(self.viewed, |sum, one| sum.and(*one))
    }

    pub(crate) fn add_received(&mut self, engine: Engine, length: usize) {
        self.received[engine as usize].add(length);
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let mut received = self.received;
        received.iter_mut().zip(other.received).for_each(|(one, other)| *one = one.and(other));
        Self {
            sent: self.sent.and(other.sent),
            received,
            viewed: self.viewed.and(other.viewed),
            pushed: self.pushed.and(other.pushed),
            bounced: self.bounced.and(other.bounced),
            put: self.put.and(other.put),
            got: self.got.and(other.got),
            served: self.served.and(other.served),
            unexpected: self.unexpected.and(other.unexpected),
            refused_cma: self.refused_cma + other.refused_cma,
            refused_mapped: self.refused_mapped + other.refused_mapped,
            withdrawn: self.withdrawn + other.withdrawn,
        }
    }
}
