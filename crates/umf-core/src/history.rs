//! [`PoolHistory`]: the latest events of a pool.

use core::fmt;
use core::time::Duration;

use crate::{Address, Error};

/// The kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was handed out.
    Allocate,
    /// A block was freed.
    Free,
    /// An allocation failed.
    AllocateRefused,
    /// A free failed, usually because the address was not that of a live block.
    FreeRefused,
    /// The pool returned free memory to its provider.
    Trim,
    /// A write to a freed block was detected.
    WrittenAfterFree,
}

const KINDS: [(EventKind, &str); 6] = [
    (EventKind::Allocate, "allocate"),
    (EventKind::Free, "free"),
    (EventKind::AllocateRefused, "allocate-refused"),
    (EventKind::FreeRefused, "free-refused"),
    (EventKind::Trim, "trim"),
    (EventKind::WrittenAfterFree, "written-after-free"),
];

impl EventKind {
    /// Returns the name of the kind, as texts and JSON have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        KINDS.iter().find(|(_, known)| *known == word).map(|(kind, _)| *kind)
    }
}

/// The values of [`Event::reason`].
const REASONS: [&str; 13] = [
    "",
    "out of memory",
    "limit",
    "held limit",
    "frozen",
    "alignment",
    "not allocated",
    "freed twice",
    "inside a block",
    "foreign",
    "written after free",
    "not supported",
    "other",
];

/// Returns the short name of an error, for [`Event::reason`].
#[must_use]
pub const fn reason(error: &Error) -> &'static str {
    let index = match error {
        Error::OutOfMemory { .. } => 1,
        Error::LimitReached { .. } => 2,
        Error::HeldLimit { .. } => 3,
        Error::Frozen { .. } => 4,
        Error::BadAlignment { .. } => 5,
        Error::NotAllocated { .. } => 6,
        Error::FreedTwice { .. } => 7,
        Error::InteriorAddress { .. } => 8,
        Error::ForeignAddress { .. } => 9,
        Error::WrittenAfterFree { .. } => 10,
        Error::NotSupported { .. } => 11,
        _ => 12,
    };
    REASONS[index]
}

/// The number of words of an [`Event`] in a ring.
pub const WORDS: usize = 5;

/// An allocation, free, trim or error in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time since the pool was made.
    pub at: Duration,
    /// The thread id (`gettid(2)`).
    pub thread: u32,
    /// The kind of event.
    pub kind: EventKind,
    /// The address of the block, or the address that was passed to `free`; 0 if there is none.
    pub address: Address,
    /// The requested bytes, or the bytes that a trim released; 0 for a free.
    pub size: u64,
    /// The size of the block in bytes, rounded up to its size class. For a trim, the bytes to keep.
    /// 0 if there is none.
    pub block_size: u64,
    /// The short name of the error; empty on success.
    pub reason: &'static str,
}

impl Event {
    /// Converts the event to words, for a ring.
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let kind = KINDS.iter().position(|(kind, _)| *kind == self.kind).unwrap_or(0) as u64;
        let reason = REASONS.iter().position(|reason| *reason == self.reason).unwrap_or(0) as u64;
        let packed = kind | reason << 8 | u64::from(self.thread) << 32;
        let at = u64::try_from(self.at.as_nanos()).unwrap_or(u64::MAX);
        [at, packed, self.address.to_bits(), self.size, self.block_size]
    }

    /// Converts words of [`Event::to_words`] to the event; `None` if the words are invalid.
    #[must_use]
    pub fn from_words([at, packed, address, size, block_size]: [u64; WORDS]) -> Option<Self> {
        let (kind, _) = KINDS.get((packed & 0xff) as usize)?;
        Some(Self {
            at: Duration::from_nanos(at),
            thread: (packed >> 32) as u32,
            kind: *kind,
            address: Address::from_bits(address),
            size,
            block_size,
            reason: REASONS.get((packed >> 8 & 0xff) as usize)?,
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at.as_nanos() as f64 / 1000.0;
        write!(f, "{micros:>14.3} us  {:>8}  {:<18}  {}", self.thread, self.kind.as_str(), self.address)?;
        match self.kind {
            EventKind::Trim => write!(f, "  {} bytes went, to keep {}", self.size, self.block_size)?,
            EventKind::Allocate => write!(f, "  {} bytes in {}", self.size, self.block_size)?,
            EventKind::Free => write!(f, "  {} bytes", self.block_size)?,
            EventKind::FreeRefused => {}
            _ => write!(f, "  {} bytes", self.size)?,
        }
        if self.reason.is_empty() { Ok(()) } else { write!(f, "  {}", self.reason) }
    }
}

/// The latest events of a pool, of all threads: see [`crate::Inspect::history`].
///
/// `Display` writes one line per event: time, thread, kind, address and sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolHistory {
    /// The pool's name.
    pub pool: String,
    /// The time at which this was read, since the pool was made.
    pub read_at: Duration,
    /// The events, earliest first.
    pub events: Vec<Event>,
    /// The number of older events that the history does not have any more.
    pub forgotten: u64,
}

impl fmt::Display for PoolHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "pool {}: {} events up to {:?} after it was made, {} before them forgotten",
            self.pool,
            self.events.len(),
            self.read_at,
            self.forgotten
        )?;
        self.events.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_conversion_to_words() {
        for (kind, word) in KINDS {
            assert_eq!((kind.as_str(), EventKind::from_word(word)), (word, Some(kind)));
            for reason in REASONS {
                let address = Address::from_bits(u64::MAX - 15);
                let at = Duration::from_nanos(123_456_789);
                let event = Event { at, thread: 7, kind, address, size: 100, block_size: 104, reason };
                assert_eq!(Event::from_words(event.to_words()), Some(event));
                let text = event.to_string();
                assert!(
                    text.contains(word) && text.contains(reason) && text.contains("123456.789 us"),
                    "{text}"
                );
            }
        }
        // Invalid kind, invalid reason.
        assert_eq!(Event::from_words([0, 200, 0, 0, 0]), None);
        assert_eq!(Event::from_words([0, 200 << 8, 0, 0, 0]), None);
        assert_eq!(reason(&Error::ZeroSize), "other");
    }
}
