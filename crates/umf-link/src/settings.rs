//! [`LinkSettings`]: how a link behaves.

use core::time::Duration;

use umf_core::settings::{Auto, ByteSize, Microseconds, Milliseconds};

use crate::layout::MAX_INLINE;
use crate::sys;

umf_core::words! {
    /// A way for the bytes of a message to get from one process to the other.
    #[non_exhaustive]
    pub enum Engine {
        /// In the ring, with the message itself.
        Inline = "inline",
        /// Through buffers that both have mapped: two copies, at the same time.
        Bounce = "bounce",
        /// By the kernel, straight out of the other process (`process_vm_readv(2)`): one copy, by the receiver.
        Cma = "cma",
        /// Memory of an exportable pool, mapped by the receiver, which copies it once.
        Mapped = "mapped",
        /// As [`Engine::Mapped`] or [`Engine::Cma`], by both sides at once: the receiver from the front, the sender from the back.
        /// For receives that wait; into memory that is not a pool's, in calls without a timeout. (Collectives and reductions have one
        /// side copy where both cannot, even if this is set.)
        Both = "both",
    }
}

umf_core::settings! {
    /// Settings of an [`crate::Endpoint`] and of the links made with it. Each side has its own.
    #[non_exhaustive]
    pub struct LinkSettings {
        /// What carries messages that are too long for a ring: "auto" (what was measured to be
        /// fastest), "inline" (the ring itself, up to 32 KiB), "bounce", "cma", "mapped" or "both". An
        /// engine that is named is obeyed or refused, never replaced.
        pub engine: Option<Engine> as Auto<Engine> = None;
        /// Longest message that goes in a ring; at most 32 KiB.
        pub eager_max: usize as ByteSize = 4 << 10, "a number of bytes up to \"32KiB\"" if |bytes| *bytes <= 32 << 10;
        /// From how many bytes on both sides copy at once, where they can.
        pub both_min: usize as ByteSize = 64 << 10;
        /// The most that a wait spins before it sleeps, in microseconds. How long each does is learned.
        /// 0 sleeps at once, and is the default on a machine with one processor.
        // Of the machine, and not of this process: ranks of jobs are bound to a processor each, and have the most to gain.
        pub spin("spin_us"): Duration as Microseconds =
            if sys::processors() == 1 { Duration::ZERO } else { Duration::from_millis(2) };
        /// How long calls may wait, in milliseconds; 0 is until the peer is gone.
        pub timeout("timeout_ms"): Option<Duration> as Milliseconds = None;
        /// Most bytes of messages that are kept because they came before they were asked for.
        pub max_unexpected: u64 as ByteSize = 64 << 20;
        /// Whether the peer is told of memory only in ways in which it cannot reach beyond what is
        /// meant: no addresses, and only handles of memory that has a file of its own. Messages then go
        /// through bounce buffers, and this process copies what the peer puts and gets (docs/link.md).
        pub enforce: bool = false;
    }
    parts {
        /// How long connecting and accepting may take once the other side is there. Default: 2 s.
        pub handshake: Duration = Duration::from_secs(2);
        /// Whether the link is one of a job with more ranks than processors.
        pub(crate) is_crowded: bool = false;
    }
}

impl LinkSettings {
    /// How long a message may be to go in the ring.
    #[inline(always)]
    pub(crate) fn inline_max(&self) -> usize {
        match self.engine {
            Some(Engine::Inline) => MAX_INLINE,
            _ => self.eager_max.min(MAX_INLINE),
        }
    }
}
