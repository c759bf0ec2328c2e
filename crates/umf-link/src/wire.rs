//! What is sent over the socket when two processes meet.

/// Bytes of a packet.
pub(crate) const SIZE: usize = 48;

const MAGIC: [u8; 4] = *b"UMFK";
const VERSION: u16 = 2;

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Who connects; its lane and its bell come with it.
    Hello = 1,
    /// Who accepts, with its own; or who does not, and says why.
    Welcome = 2,
    /// A rank that has joined a job: [`Here`].
    Here = 3,
    /// Who connected as a rank, and has not given up meanwhile.
    Agreed = 4,
}

/// Who connects as a rank of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intro {
    pub rank: u32,
    pub size: u32,
    /// How many links it has had with the other side already.
    pub links: u32,
}

impl Intro {
    /// As a packet has it; of who is no rank, 0.
    pub(crate) fn encode(intro: Option<Self>) -> [u32; 4] {
        intro.map_or([0; 4], |Self { rank, size, links }| [1, rank, size, links])
    }

    /// `None` of words that are no such thing.
    pub(crate) fn decode(words: [u32; 4]) -> Option<Option<Self>> {
        match words {
            [0, 0, 0, 0] => Some(None),
            [1, rank, size, links] => Some(Some(Self { rank, size, links })),
            _ => None,
        }
    }
}

/// What is said to who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// This is the link from now on.
    Yes,
    /// There is another one, or this side makes one.
    No,
    /// The job has so many ranks.
    Size(u32),
}

impl Reply {
    pub(crate) const fn encode(self) -> [u32; 4] {
        match self {
            Self::Yes => [0; 4],
            Self::No => [1, 0, 0, 0],
            Self::Size(size) => [2, size, 0, 0],
        }
    }

    /// `None` of words that are no such thing.
    pub(crate) const fn decode(words: [u32; 4]) -> Option<Self> {
        match words {
            [0, 0, 0, 0] => Some(Self::Yes),
            [1, 0, 0, 0] => Some(Self::No),
            [2, size, 0, 0] => Some(Self::Size(size)),
            _ => None,
        }
    }
}

/// What one process says to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Where it has its lane.
    pub base: u64,
    /// Of the link.
    pub nonce: u128,
    /// [`Intro`] or [`Reply`].
    pub words: [u32; 4],
}

impl Packet {
    pub(crate) fn encode(self, kind: Kind) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.base.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.nonce.to_le_bytes());
        for (to, word) in bytes[32..].chunks_exact_mut(4).zip(self.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` of anything else.
    pub(crate) fn decode(bytes: &[u8], kind: Kind) -> Option<Self> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
        let is_it = bytes[0..4] == MAGIC
            && bytes[4..6] == VERSION.to_le_bytes()
            && bytes[6..8] == (kind as u16).to_le_bytes();
        let base = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
        let nonce = u128::from_le_bytes(bytes[16..32].try_into().ok()?);
        let word =
            |number: usize| <[u8; 4]>::try_from(&bytes[32 + 4 * number..][..4]).map(u32::from_le_bytes);
        let words = [word(0).ok()?, word(1).ok()?, word(2).ok()?, word(3).ok()?];
        is_it.then_some(Self { base, nonce, words })
    }
}

/// Digits that tell processes apart which say that they are the same rank of a job.
pub(crate) const DIGITS: usize = 16;

/// What a rank that joins says to those that are there. No answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Here {
    pub rank: u32,
    /// Of the job, as it has it.
    pub size: u32,
    /// Where it listens.
    pub digits: [u8; DIGITS],
}

impl Here {
    pub(crate) fn encode(self) -> [u8; SIZE] {
        let base = u64::from(self.rank) | u64::from(self.size) << 32;
        Packet { base, nonce: u128::from_le_bytes(self.digits), words: [0; 4] }.encode(Kind::Here)
    }

    /// `None` of anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let Packet { base, nonce, words: [0, 0, 0, 0] } = Packet::decode(bytes, Kind::Here)? else {
            return None;
        };
        let digits = nonce.to_le_bytes();
        let is_it = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        is_it.then_some(Self { rank: base as u32, size: (base >> 32) as u32, digits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_round_trip() {
        let packet = Packet { base: 0x7fff_0000, nonce: 1 << 100 | 5, words: [1, 2, 3, u32::MAX] };
        let bytes = packet.encode(Kind::Hello);
        assert_eq!(Packet::decode(&bytes, Kind::Hello), Some(packet));
        assert_eq!(Packet::decode(&bytes, Kind::Welcome), None);
        for intro in [None, Some(Intro { rank: 3, size: 4096, links: 9 })] {
            assert_eq!(Intro::decode(Intro::encode(intro)), Some(intro));
        }
        for reply in [Reply::Yes, Reply::No, Reply::Size(7)] {
            assert_eq!(Reply::decode(reply.encode()), Some(reply));
        }
        assert_eq!((Intro::decode([2, 0, 0, 0]), Reply::decode([1, 1, 0, 0])), (None, None));
        let here = Here { rank: 3, size: 4096, digits: *b"0123456789abcdef" };
        assert_eq!(Here::decode(&here.encode()), Some(here));
        assert_eq!(Here::decode(&bytes), None);
        assert_eq!(Here::decode(&Here { digits: *b"0123456789abcdeF", ..here }.encode()), None);
    }

    proptest! {
        #[test]
        fn whatever_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Packet::decode(&bytes, Kind::Hello);
            if let Some(here) = Here::decode(&bytes) {
                prop_assert_eq!(&here.encode()[..], &bytes[..]);
            }
        }
    }
}
