//! `[link]`: messages between two processes.

use std::time::Duration;

use serde::Serialize;

use crate::ByteSize;
use crate::field::{Field, Section, field, words};

words! {
    /// What carries messages that are too long for a ring.
    LinkEngine {
        /// Whatever was measured to be fastest.
        #[default]
        Auto = "auto",
        /// The ring itself: up to 32 KiB.
        Inline = "inline",
        /// Bounce buffers.
        Bounce = "bounce",
        /// `process_vm_readv(2)`, by the receiver.
        Cma = "cma",
        /// Memory of exportable pools, mapped by the receiver.
        Mapped = "mapped",
        /// As `mapped` or `cma`, by both sides at once.
        Both = "both",
    }
}

/// The section `[link]`. Environment names are `UMF_LINK_<KEY>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Link {
    /// What carries longer messages; an explicit choice is obeyed or refused. Default: `auto`.
    pub engine: LinkEngine,
    /// The longest message that goes in a ring; at most 32 KiB. Default: 4 KiB.
    pub eager_max: ByteSize,
    /// From how many bytes on both sides copy at once. Default: 64 KiB.
    pub both_min: ByteSize,
    /// The most that a wait spins before it sleeps, in microseconds; 0 sleeps at once. Default: 2000.
    pub spin_us: u64,
    /// How long calls may wait, in milliseconds; 0 is until the peer is gone. Default: 0.
    pub timeout_ms: u64,
    /// The most bytes of messages that are kept because they came before they were asked for. Default: 64 MiB.
    pub max_unexpected: ByteSize,
    /// Whether the peer is told of memory only in ways in which it cannot reach beyond what is meant. Default: `false`.
    pub enforce: bool,
}

impl Link {
    /// [`Link::spin_us`] as a duration.
    pub const fn spin(&self) -> Duration {
        Duration::from_micros(self.spin_us)
    }

    /// [`Link::timeout_ms`] as a duration; `None` is for ever.
    pub fn timeout(&self) -> Option<Duration> {
        (self.timeout_ms != 0).then(|| Duration::from_millis(self.timeout_ms))
    }
}

impl Default for Link {
    fn default() -> Self {
        Self {
            engine: LinkEngine::Auto,
            eager_max: ByteSize::new(4 << 10),
            both_min: ByteSize::new(64 << 10),
            spin_us: 2000,
            timeout_ms: 0,
            max_unexpected: ByteSize::new(64 << 20),
            enforce: false,
        }
    }
}

impl Section for Link {
    const FIELDS: &'static [Field<Self>] = &[
        field!(engine),
        field!(eager_max, "a number of bytes up to \"32KiB\"" if |size| ByteSize::get(size) <= 32 << 10),
        field!(both_min),
        field!(spin_us),
        field!(timeout_ms),
        field!(max_unexpected),
        field!(enforce),
    ];
}
