//! What the flight recorder remembers.

use crate::Error;
use crate::identity::Nonce;

use super::ring::Shape;

/// Words of an event but for its record's stamp: time, kind and slot, generation, subject, detail.
const WORDS: usize = 5;
/// The recorder of a producer: 96 KiB.
pub(crate) const PRODUCER_EVENTS: Shape = Shape { records: 2048, words: WORDS + 1 };
/// The recorder of an importer: 12 KiB.
pub(crate) const IMPORTER_EVENTS: Shape = Shape { records: 256, words: WORDS + 1 };

/// Why an export ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetireReason {
    /// Its block was freed.
    BlockFreed,
    /// Its region was freed, as a whole.
    RegionFreed,
    /// Its region left the exporter's cache: nobody used it, and a limit was reached or somebody asked for room.
    Evicted,
    /// The exporter was dropped.
    ExporterDropped,
    /// Something that this version does not know.
    Other(u32),
}

impl RetireReason {
    const fn code(self) -> u32 {
        match self {
            Self::BlockFreed => 1,
            Self::RegionFreed => 2,
            Self::Evicted => 3,
            Self::ExporterDropped => 4,
            Self::Other(code) => code,
        }
    }

    pub(crate) const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::BlockFreed,
            2 => Self::RegionFreed,
            3 => Self::Evicted,
            4 => Self::ExporterDropped,
            code => Self::Other(code),
        }
    }
}

/// Why an importer refused to open a handle: the variants of [`Error`], as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefuseReason {
    /// [`Error::Stale`].
    Stale,
    /// [`Error::ProducerGone`].
    ProducerGone,
    /// [`Error::ProducerReplaced`].
    ProducerReplaced,
    /// [`Error::OtherObject`].
    OtherObject,
    /// [`Error::OtherBoot`].
    OtherBoot,
    /// [`Error::NotPermitted`].
    NotPermitted,
    /// [`Error::UnknownProvider`].
    UnknownProvider,
    /// [`Error::LimitReached`].
    LimitReached,
    /// [`Error::TimedOut`].
    TimedOut,
    /// [`Error::Misbehaved`].
    Misbehaved,
    /// [`Error::ReadOnly`].
    ReadOnly,
    /// [`Error::Memory`]: the provider said no.
    Memory,
    /// [`Error::System`].
    System,
    /// Something else.
    Other(u32),
}

impl RefuseReason {
    const ALL: [Self; 13] = [
        Self::Stale,
        Self::ProducerGone,
        Self::ProducerReplaced,
        Self::OtherObject,
        Self::OtherBoot,
        Self::NotPermitted,
        Self::UnknownProvider,
        Self::LimitReached,
        Self::TimedOut,
        Self::Misbehaved,
        Self::ReadOnly,
        Self::Memory,
        Self::System,
    ];

    fn code(self) -> u32 {
        if let Self::Other(code) = self {
            return code;
        }
        let place = Self::ALL.iter().position(|&reason| reason == self);
        place.and_then(|place| u32::try_from(place + 1).ok()).unwrap_or(0)
    }

    fn from_code(code: u32) -> Self {
        let place = usize::try_from(code).ok().and_then(|code| code.checked_sub(1));
        place.and_then(|place| Self::ALL.get(place).copied()).unwrap_or(Self::Other(code))
    }
}

impl From<&Error> for RefuseReason {
    fn from(error: &Error) -> Self {
        match error {
            Error::Stale { .. } => Self::Stale,
            Error::ProducerGone { .. } => Self::ProducerGone,
            Error::ProducerReplaced { .. } => Self::ProducerReplaced,
            Error::OtherObject { .. } => Self::OtherObject,
            Error::OtherBoot => Self::OtherBoot,
            Error::NotPermitted { .. } => Self::NotPermitted,
            Error::UnknownProvider { .. } => Self::UnknownProvider,
            Error::LimitReached { .. } | Error::NoLeaseRow { .. } => Self::LimitReached,
            Error::TimedOut { .. } => Self::TimedOut,
            Error::Misbehaved { .. } => Self::Misbehaved,
            Error::ReadOnly => Self::ReadOnly,
            Error::Memory(_) => Self::Memory,
            Error::System { .. } => Self::System,
            _ => Self::Other(0),
        }
    }
}

/// Something that happened to an export, as its producer or an importer wrote it down.
///
/// `nonce` is the first half of the producer's ([`half_of`]): an importer's recorder tells of several producers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A producer made a block or a region visible.
    Export {
        /// The ledger slot.
        slot: u32,
        /// Which it had from then on.
        generation: u64,
        /// Id of the region.
        region: u64,
        /// Length of the block.
        bytes: u64,
    },
    /// A producer ended an export. A region that leaves as a whole is one event, with its own slot.
    Retire {
        /// The ledger slot.
        slot: u32,
        /// Which it had until then.
        generation: u64,
        /// Id of the region.
        region: u64,
        /// Why.
        reason: RetireReason,
    },
    /// An importer mapped the region of a handle.
    Open {
        /// Of the handle.
        slot: u32,
        /// Of the handle.
        generation: u64,
        /// Half of the producer's nonce.
        nonce: u64,
        /// The producer's process id.
        pid: u32,
    },
    /// An importer refused to open a handle.
    Refuse {
        /// Of the handle.
        slot: u32,
        /// Of the handle.
        generation: u64,
        /// Half of the producer's nonce.
        nonce: u64,
        /// The producer's process id.
        pid: u32,
        /// Why.
        reason: RefuseReason,
    },
    /// A producer keeps memory that was freed, because others still have it open.
    Hold {
        /// The ledger slot.
        slot: u32,
        /// Which it had when it was retired.
        generation: u64,
        /// Id of the region.
        region: u64,
        /// How much is held.
        bytes: u64,
    },
    /// The last user of what was held is gone.
    Release {
        /// The ledger slot.
        slot: u32,
        /// Which it had when it was retired.
        generation: u64,
        /// Id of the region.
        region: u64,
        /// How much was held.
        bytes: u64,
    },
    /// Something that this version does not know.
    Unknown {
        /// Its number.
        kind: u32,
        /// The ledger slot.
        slot: u32,
        /// Of the slot.
        generation: u64,
    },
}

/// The half of a nonce that events carry.
#[must_use]
pub fn half_of(nonce: Nonce) -> u64 {
    nonce.as_bytes().iter().take(8).rev().fold(0, |half, &byte| half << 8 | u64::from(byte))
}

const fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Event {
    /// Slot and generation, where the event is about an export.
    #[must_use]
    pub const fn export(&self) -> Option<(u32, u64)> {
        match *self {
            Self::Export { slot, generation, .. }
            | Self::Retire { slot, generation, .. }
            | Self::Open { slot, generation, .. }
            | Self::Refuse { slot, generation, .. }
            | Self::Hold { slot, generation, .. }
            | Self::Release { slot, generation, .. }
            | Self::Unknown { slot, generation, .. } => Some((slot, generation)),
        }
    }

    /// The words of an event that happened at `time` (nanoseconds of `CLOCK_BOOTTIME`).
    pub(super) fn encode(self, time: u64) -> [u64; WORDS] {
        let (kind, slot, generation, subject, detail) = match self {
            Self::Export { slot, generation, region, bytes } => (1, slot, generation, region, bytes),
            Self::Retire { slot, generation, region, reason } => {
                (2, slot, generation, region, join(0, reason.code()))
            }
            Self::Open { slot, generation, nonce, pid } => (3, slot, generation, nonce, join(pid, 0)),
            Self::Refuse { slot, generation, nonce, pid, reason } => {
                (4, slot, generation, nonce, join(pid, reason.code()))
            }
            Self::Hold { slot, generation, region, bytes } => (5, slot, generation, region, bytes),
            Self::Release { slot, generation, region, bytes } => (6, slot, generation, region, bytes),
            Self::Unknown { kind, slot, generation } => (kind, slot, generation, 0, 0),
        };
        [time, join(slot, kind), generation, subject, detail]
    }

    /// The event that words say, whoever wrote them, and when it happened.
    pub(super) fn decode(words: [u64; WORDS]) -> (u64, Self) {
        let [time, what, generation, subject, detail] = words;
        let (slot, kind) = split(what);
        let (pid, reason) = split(detail);
        let event = match kind {
            1 => Self::Export { slot, generation, region: subject, bytes: detail },
            2 => {
                let reason = RetireReason::from_code(reason);
                Self::Retire { slot, generation, region: subject, reason }
            }
            3 => Self::Open { slot, generation, nonce: subject, pid },
            4 => {
                let reason = RefuseReason::from_code(reason);
                Self::Refuse { slot, generation, nonce: subject, pid, reason }
            }
            5 => Self::Hold { slot, generation, region: subject, bytes: detail },
            6 => Self::Release { slot, generation, region: subject, bytes: detail },
            kind => Self::Unknown { kind, slot, generation },
        };
        (time, event)
    }
}

/// An event as a reader found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number: they count up from 0 in the life of a recorder.
    pub ticket: u64,
    /// When it happened, in nanoseconds of `CLOCK_BOOTTIME`. Whoever wrote it may have lied.
    pub time: u64,
    /// What happened.
    pub event: Event,
}

impl Recorded {
    pub(crate) fn decode(ticket: u64, fields: &[u64]) -> Option<Self> {
        let (time, event) = Event::decode(fields.try_into().ok()?);
        Some(Self { ticket, time, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let (slot, generation, region, bytes, nonce, pid) = (7, 13, 5, 1 << 40, u64::MAX - 1, 4321);
        let retire = |reason| Event::Retire { slot, generation, region, reason };
        let refuse = |reason| Event::Refuse { slot, generation, nonce, pid, reason };
        let mut events = vec![
            Event::Export { slot, generation, region, bytes },
            retire(RetireReason::BlockFreed),
            retire(RetireReason::RegionFreed),
            retire(RetireReason::Evicted),
            retire(RetireReason::ExporterDropped),
            retire(RetireReason::Other(99)),
            Event::Open { slot, generation, nonce, pid },
            refuse(RefuseReason::Other(99)),
            Event::Hold { slot, generation, region, bytes },
            Event::Release { slot, generation, region, bytes },
            Event::Unknown { kind: 77, slot, generation },
        ];
        events.extend(RefuseReason::ALL.map(refuse));
        for event in events {
            assert_eq!(Event::decode(event.encode(123)), (123, event));
        }
        let nonce = Nonce::from_bytes(core::array::from_fn(|place| place as u8 + 1));
        assert_eq!(half_of(nonce), 0x0807_0605_0403_0201);
        assert_eq!(RefuseReason::from(&Error::OtherBoot), RefuseReason::OtherBoot);
    }

    proptest! {
        #[test]
        fn any_words_are_an_event(words in proptest::array::uniform5(any::<u64>()), kind in 0_u64..10) {
            let mut words = words;
            words[1] = words[1] & 0xFFFF_FFFF | kind << 32;
            let (time, event) = Event::decode(words);
            prop_assert_eq!(time, words[0]);
            prop_assert_eq!(Event::decode(event.encode(time)), (time, event));
        }
    }
}
