//! What two ranks say to each other on a new link, before it is used.

use crate::error::Result;
use crate::{Error, Link, TagMatch};

const MAGIC: u32 = u32::from_le_bytes(*b"UMFR");
const VERSION: u32 = 2;
const LENGTH: usize = 24;
const ASKS: u64 = u64::from_le_bytes(*b"umfrank?");
const ANSWERS: u64 = u64::from_le_bytes(*b"umfrank!");
const AGREES: u64 = u64::from_le_bytes(*b"umfrank.");

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intro {
    pub rank: usize,
    pub size: usize,
    /// How many links it has had with the other side already.
    pub links: u32,
}

/// What who accepts says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// This is the link from now on.
    Yes,
    /// There is another one, or this side makes one.
    No,
    /// The job has so many ranks.
    Size(usize),
}

fn pack(words: [u32; 6]) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn unpack(bytes: &[u8]) -> Option<[u32; 4]> {
    let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
    let mut words =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    if words.next() != Some(MAGIC) || words.next() != Some(VERSION) {
        return None;
    }
    Some([words.next()?, words.next()?, words.next()?, words.next()?])
}

impl Intro {
    fn encode(self) -> [u8; LENGTH] {
        pack([MAGIC, VERSION, self.rank as u32, self.size as u32, self.links, 0])
    }

    /// `None` of what no rank says.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let [rank, size, links, 0] = unpack(bytes)? else { return None };
        Some(Self { rank: rank as usize, size: size as usize, links })
    }

    /// Says who this is, and yields what the other side says to it; `None` if that is no rank.
    pub(super) fn tell(self, link: &mut Link) -> Result<Option<Reply>> {
        link.send(ASKS, &self.encode())?;
        let mut bytes = [0; LENGTH];
        let length = match link.recv(TagMatch::ANY, &mut bytes) {
            Ok(received) if received.tag == ANSWERS => received.length,
            Ok(_) | Err(Error::Truncated { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Reply::decode(&bytes[..length]))
    }

    /// Says that the link is used from now on: who accepted cannot know whether its answer came in time.
    pub(super) fn agree(link: &mut Link) -> Result<()> {
        link.send(AGREES, &[])
    }

    /// Waits for that.
    pub(super) fn is_agreed(link: &mut Link) -> bool {
        link.recv(AGREES, &mut [0; 0]).is_ok()
    }

    /// Hears who the other side is; `None` if it is no rank.
    pub(super) fn hear(link: &mut Link) -> Result<Option<Self>> {
        let mut bytes = [0; LENGTH];
        match link.recv(TagMatch::ANY, &mut bytes) {
            Ok(received) if received.tag == ASKS => Ok(Self::decode(&bytes[..received.length])),
            Ok(_) | Err(Error::Truncated { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Reply {
    fn encode(self) -> [u8; LENGTH] {
        let (code, size) = match self {
            Self::Yes => (0, 0),
            Self::No => (1, 0),
            Self::Size(size) => (2, size),
        };
        pack([MAGIC, VERSION, code, size as u32, 0, 0])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match unpack(bytes)? {
            [0, 0, 0, 0] => Some(Self::Yes),
            [1, 0, 0, 0] => Some(Self::No),
            [2, size, 0, 0] => Some(Self::Size(size as usize)),
            _ => None,
        }
    }

    pub(super) fn tell(self, link: &mut Link) -> Result<()> {
        link.send(ANSWERS, &self.encode())
    }
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(intro) = Intro::decode(bytes) {
        assert_eq!(intro.encode(), bytes);
    }
    if let Some(reply) = Reply::decode(bytes) {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_said_is_heard() {
        let intro = Intro { rank: 3, size: 4096, links: 9 };
        assert_eq!(Intro::decode(&intro.encode()), Some(intro));
        for reply in [Reply::Yes, Reply::No, Reply::Size(7)] {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    proptest! {
        #[test]
        fn whatever_the_bytes(words in any::<[u32; 4]>(), cut in 0..=LENGTH, is_ours in any::<bool>()) {
            let magic = if is_ours { [MAGIC, VERSION] } else { [words[0], words[1]] };
            let bytes = pack([magic[0], magic[1], words[0] % 3, words[1], words[2] % 3, words[3] % 2]);
            if let Some(intro) = Intro::decode(&bytes[..cut]) {
                prop_assert_eq!(intro.encode(), bytes);
            }
            if let Some(reply) = Reply::decode(&bytes[..cut]) {
                prop_assert_eq!(Reply::decode(&reply.encode()), Some(reply));
            }
        }
    }
}
