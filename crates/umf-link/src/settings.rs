//! [`LinkSettings`]: how a link behaves.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::layout::MAX_INLINE;
use crate::sys;

/// A way for the bytes of a message to get from one process to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// In the ring, with the message itself.
    Inline,
    /// Through buffers that both have mapped: two copies, at the same time.
    Bounce,
    /// By the kernel, straight out of the other process (`process_vm_readv(2)`): one copy, by the receiver.
    Cma,
    /// Memory of an exportable pool, mapped by the receiver, which copies it once.
    Mapped,
    /// As [`Engine::Mapped`] or [`Engine::Cma`], by both sides at once: the receiver from the front, the sender from the back.
    /// For receives that wait; into memory that is not a pool's, in calls without a timeout. (Collectives and reductions have one
    /// side copy where both cannot, even if this is set.)
    Both,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Inline, Self::Bounce, Self::Cma, Self::Mapped, Self::Both];

    /// Its name, as settings have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Bounce => "bounce",
            Self::Cma => "cma",
            Self::Mapped => "mapped",
            Self::Both => "both",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Engine {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|engine| engine.as_str() == text).ok_or(())
    }
}

/// Settings of an [`crate::Endpoint`] and of the links made with it. Each side has its own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkSettings {
    /// The engine that all messages take which are longer than [`LinkSettings::eager_max`]: obeyed or refused, never replaced.
    /// `None` is the one that was found to be fastest. Default: `None`.
    pub engine: Option<Engine>,
    /// Messages of up to so many bytes go in the ring; at most 32 KiB. Default: 4 KiB.
    pub eager_max: usize,
    /// From how many bytes on both sides copy at once, where they can. Default: 64 KiB.
    pub both_min: usize,
    /// The most that a wait spins before it sleeps. How long each does is learned, from 50 us on: what is slept for and comes within
    /// this time is waited for awake the next time. Default: 2 ms; 0 on a machine of one processor: sleep at once.
    pub spin: Duration,
    /// How long calls may wait, unless the link is told otherwise. `None`, the default, is until the peer is gone.
    pub timeout: Option<Duration>,
    /// How long connecting and accepting may take once the other side is there. Default: 2 s.
    pub handshake: Duration,
    /// The most bytes of messages that are kept because they came before they were asked for. Default: 64 MiB.
    pub max_unexpected: u64,
    /// Whether the peer is told of this process's memory only in ways in which it cannot reach beyond what is meant: no addresses,
    /// and only handles of memory that has a file of its own. What is sent then goes through bounce buffers, and `put` and `get` of
    /// the peer are done by this process (`docs/link.md`). Default: `false`.
    pub enforce: bool,
    /// Whether the link is one of a job with more ranks than processors.
    pub(crate) is_crowded: bool,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            engine: None,
            eager_max: 4 << 10,
            both_min: 64 << 10,
            // Of the machine, and not of this process: ranks of jobs are bound to a processor each, and have the most to gain.
            spin: if sys::processors() == 1 { Duration::ZERO } else { Duration::from_millis(2) },
            timeout: None,
            handshake: Duration::from_secs(2),
            max_unexpected: 64 << 20,
            enforce: false,
            is_crowded: false,
        }
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
