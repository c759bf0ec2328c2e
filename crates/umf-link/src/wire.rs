//! What is sent over the socket when two processes meet.

/// Bytes of a packet.
pub(crate) const SIZE: usize = 32;

const MAGIC: [u8; 4] = *b"UMFK";
const VERSION: u16 = 1;

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Who connects; the segment comes with it.
    Hello = 1,
    /// Who accepts.
    Welcome = 2,
    /// A rank that has joined a job: [`Here`].
    Here = 3,
}

/// What one process says to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Where it has the segment.
    pub base: u64,
    /// Of the segment.
    pub nonce: u128,
}

impl Packet {
    pub(crate) fn encode(self, kind: Kind) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.base.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.nonce.to_le_bytes());
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
        is_it.then_some(Self { base, nonce })
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
        Packet { base, nonce: u128::from_le_bytes(self.digits) }.encode(Kind::Here)
    }

    /// `None` of anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let Packet { base, nonce } = Packet::decode(bytes, Kind::Here)?;
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
        let packet = Packet { base: 0x7fff_0000, nonce: 1 << 100 | 5 };
        let bytes = packet.encode(Kind::Hello);
        assert_eq!(Packet::decode(&bytes, Kind::Hello), Some(packet));
        assert_eq!(Packet::decode(&bytes, Kind::Welcome), None);
        let here = Here { rank: 3, size: 4096, digits: *b"0123456789abcdef" };
        assert_eq!(Here::decode(&here.encode()), Some(here));
        assert_eq!(Here::decode(&bytes), None);
        assert_eq!(Here::decode(&Here { digits: *b"0123456789abcdeF", ..here }.encode()), None);
    }

    proptest! {
        #[test]
        fn whatever_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Packet::decode(&bytes, Kind::Hello);
            if let Some(here) = Here::decode(&bytes) {
                prop_assert_eq!(&here.encode()[..], &bytes[..]);
            }
        }
    }
}
