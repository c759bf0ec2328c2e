//! [`LinkSettings`]: the settings of a link. [`Engine`]: the mechanisms that carry messages.

use core::time::Duration;
use std::path::PathBuf;

use umf_core::settings::{Auto, ByteSize, Microseconds, Milliseconds};
use umf_ipc::Allow;
use umf_ipc::rendezvous::Directory;

use crate::layout::MAX_INLINE;
use crate::{Error, Result, sys};

/// Fails if `interrupt` says so.
pub(crate) fn check_interrupt(interrupt: Option<fn() -> bool>) -> Result<()> {
    if interrupt.is_some_and(|is_interrupted| is_interrupted()) { Err(Error::Interrupted) } else { Ok(()) }
}

umf_core::words! {
    /// A mechanism that copies a message from one process to the other.
    #[non_exhaustive]
    pub enum Engine {
        /// In the ring, with the message itself.
        Inline = "inline",
        /// Through buffers that both have mapped: two copies, at the same time.
        Bounce = "bounce",
        /// By the kernel (`process_vm_readv(2)`), called by the receiver: one copy.
        Cma = "cma",
        /// Memory of an exportable pool, mapped by the receiver, which copies it once.
        Mapped = "mapped",
        /// As [`Engine::Mapped`] or [`Engine::Cma`], by both processes at once: the receiver from
        /// the front, the sender from the back. For receives that wait, with one piece of memory on
        /// either side; into memory that is not a pool's, only without a timeout. (In collectives
        /// and reductions one process copies where both cannot, even if this is set.)
        Both = "both",
    }
}

umf_core::settings! {
    /// Settings of an [`crate::Endpoint`] and of the links made with it. Each side has its own.
    #[non_exhaustive]
    pub struct LinkSettings {
        /// Engine for messages that are longer than `eager_max`: "auto" (what was measured to be
        /// fastest), "inline" (the ring, up to 32 KiB), "bounce", "cma", "mapped" or "both". An
        /// engine that is named is used or refused, never replaced.
        pub engine: Option<Engine> as Auto<Engine> = None;
        /// Longest message that goes in a ring; at most 32 KiB.
        pub eager_max: usize as ByteSize = 4 << 10, "a number of bytes up to \"32KiB\"" if |bytes| *bytes <= 32 << 10;
        /// Length from which on both processes copy a message at once, where that is possible.
        pub both_min: usize as ByteSize = 64 << 10;
        /// Longest spinning of a wait before it sleeps, in microseconds. Each inbox learns its own
        /// length below that. 0 sleeps at once, and is the default on a machine with one processor.
        // Of the machine: ranks that are bound to one processor each gain the most from spinning.
        pub spin("spin_us"): Duration as Microseconds =
            if sys::processors() == 1 { Duration::ZERO } else { Duration::from_millis(2) };
        /// How long calls may wait, in milliseconds; 0 is until the peer is gone.
        pub timeout("timeout_ms"): Option<Duration> as Milliseconds = None;
        /// Memory of short messages that are kept because they came before they were received.
        /// Beyond this, senders announce messages and keep the data until it is received.
        pub max_unexpected: u64 as ByteSize = 64 << 20;
    }
    parts {
        /// How long connecting and accepting may take once the other side is there. Default: 2 s.
        pub handshake: Duration = Duration::from_secs(2);
        /// A function that calls run at least every 25 ms once they sleep. If it returns `true`,
        /// the call ends with [`Error::Interrupted`](crate::Error::Interrupted). For the signals of
        /// an interpreter. Default: none.
        pub interrupt: Option<fn() -> bool> = None;
        /// The directory in which endpoints and ranks have their sockets, for processes without a
        /// common network namespace. All processes set it, each to its own path of the same
        /// directory. Default: none. Then the sockets are abstract.
        pub directory: Option<PathBuf> = None;
        /// Which processes may be peers. Other rules than [`Allow::SameUser`] need a directory. By
        /// [`Allow::Handle`] an address is the secret, and the name of a named endpoint or a job.
        /// Default: [`Allow::SameUser`].
        pub allow: Allow = Allow::SameUser;
    }
}

impl LinkSettings {
    /// Returns the directory of sockets; `None`: they are abstract.
    pub(crate) fn place(&self) -> Option<Directory> {
        self.directory.as_ref().map(Directory::new)
    }

    /// Returns which processes may be peers. The names of abstract sockets are those of one user.
    pub(crate) fn rule(&self) -> Allow {
        if self.directory.is_some() { self.allow } else { Allow::SameUser }
    }

    /// Returns the longest message that is sent in a ring.
    #[inline(always)]
    pub(crate) fn inline_max(&self) -> usize {
        match self.engine {
            Some(Engine::Inline) => MAX_INLINE,
            _ => self.eager_max.min(MAX_INLINE),
        }
    }
}
