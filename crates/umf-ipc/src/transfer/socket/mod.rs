//! The producer's sockets (`SOCK_SEQPACKET`, `unix(7)`): an abstract one, which leaves no file
//! behind, and one in a directory, which processes without a common network namespace find
//! ([`crate::rendezvous`]). Both are named by the nonce. This file has the packets of the protocol.
//!
//! A request asks for one fd and gets one answer. Each process checks the uid of the other
//! (`SO_PEERCRED`), or that it has the handle's key ([`proof`]). Each wait has a bound.

pub(crate) mod client;
pub(crate) mod proof;
pub(crate) mod server;

use std::os::fd::BorrowedFd;

use crate::identity::{self, Nonce};
use umf_os::socket::Allow;

pub const REQUEST_SIZE: usize = 40;
const REPLY_SIZE: usize = 16;

const REQUEST_MAGIC: [u8; 4] = *b"UMFR";
const REPLY_MAGIC: [u8; 4] = *b"UMFA";
const VERSION: u16 = 2;
const KIND_LEDGER: u16 = 1;
const KIND_DATA: u16 = 2;
const KIND_LEASE_TABLE: u16 = 3;

/// A request for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The ledger, or the file that another crate serves in its place.
    Ledger,
    /// The file of an export's memory.
    Data {
        /// The slot in the ledger.
        slot: u32,
        /// The generation of the slot.
        generation: u64,
    },
    /// The lease table, with an open file description that only the client has.
    LeaseTable,
}

impl Request {
    /// Returns the bytes of the packet.
    #[must_use]
    pub fn encode(self, nonce: Nonce) -> [u8; REQUEST_SIZE] {
        let (kind, slot, generation) = match self {
            Self::Ledger => (KIND_LEDGER, 0, 0),
            Self::Data { slot, generation } => (KIND_DATA, slot, generation),
            Self::LeaseTable => (KIND_LEASE_TABLE, 0, 0),
        };
        let mut bytes = [0; REQUEST_SIZE];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&slot.to_le_bytes());
        bytes[16..24].copy_from_slice(&generation.to_le_bytes());
        bytes[24..40].copy_from_slice(nonce.as_bytes());
        bytes
    }

    /// Parses a packet; `None` if it is not a request to the producer with this nonce.
    fn decode(bytes: &[u8], nonce: Nonce) -> Option<Self> {
        let bytes: &[u8; REQUEST_SIZE] = bytes.try_into().ok()?;
        let is_valid = bytes[0..4] == REQUEST_MAGIC
            && bytes[4..6] == VERSION.to_le_bytes()
            && bytes[24..40] == *nonce.as_bytes();
        if !is_valid {
            return None;
        }
        let kind = u16::from_le_bytes([bytes[6], bytes[7]]);
        let slot = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        let generation = u64::from_le_bytes(bytes[16..24].try_into().ok()?);
        match kind {
            KIND_LEDGER => Some(Self::Ledger),
            KIND_DATA => Some(Self::Data { slot, generation }),
            KIND_LEASE_TABLE => Some(Self::LeaseTable),
            _ => None,
        }
    }
}

/// The status of an answer. The packet of [`Reply::Ok`] carries a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Ok {
        /// Whether the descriptor was opened for the client, so that no other process has its open
        /// file description.
        is_exclusive: bool,
    },
    /// The slot has this generation now.
    Stale(u64),
    /// This rule of the server refuses the client.
    NotPermitted(Allow),
    BadRequest,
    /// The kernel refuses to send a descriptor, because too many are in flight (`ETOOMANYREFS`).
    Busy,
}

impl Reply {
    fn encode(self) -> [u8; REPLY_SIZE] {
        let (status, value): (u32, u64) = match self {
            Self::Ok { is_exclusive } => (0, u64::from(is_exclusive)),
            Self::Stale(now) => (1, now),
            Self::NotPermitted(rule) => {
                (2, Allow::ALL.iter().position(|&known| known == rule).unwrap_or(0) as u64)
            }
            Self::BadRequest => (3, 0),
            Self::Busy => (4, 0),
        };
        let mut bytes = [0; REPLY_SIZE];
        bytes[0..4].copy_from_slice(&REPLY_MAGIC);
        bytes[4..8].copy_from_slice(&status.to_le_bytes());
        bytes[8..16].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REPLY_SIZE] = bytes.try_into().ok()?;
        if bytes[0..4] != REPLY_MAGIC {
            return None;
        }
        let value = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
        match u32::from_le_bytes(bytes[4..8].try_into().ok()?) {
            0 if value <= 1 => Some(Self::Ok { is_exclusive: value == 1 }),
            1 => Some(Self::Stale(value)),
            2 => Some(Self::NotPermitted(*Allow::ALL.get(usize::try_from(value).ok()?)?)),
            3 => Some(Self::BadRequest),
            4 => Some(Self::Busy),
            _ => None,
        }
    }
}

/// Returns the abstract name of a producer's socket.
fn abstract_name(nonce: Nonce) -> Vec<u8> {
    format!("umf-{nonce}").into_bytes()
}

/// Returns the name of an abstract socket for proofs: with the network namespace, in which alone it
/// is one socket.
fn abstract_socket(nonce: Nonce, socket: BorrowedFd<'_>) -> String {
    format!("abstract {nonce} {}", umf_os::socket::network_namespace(socket))
}

/// The beginning of all names of umf in a directory.
pub(crate) const DIRECTORY_FAMILY: &str = "umf-";

/// Returns the beginning of the names of this boot in a directory. Processes of another boot, or of
/// another machine that has mounted the directory, have other names.
#[must_use]
pub fn directory_prefix() -> String {
    format!("{DIRECTORY_FAMILY}{:016x}-", identity::boot_id().half().0)
}

/// Returns the name of a producer's socket in a directory.
#[must_use]
pub fn directory_name(nonce: Nonce) -> String {
    format!("{}{nonce}", directory_prefix())
}

/// Fuzz target: a packet that decodes encodes to the same.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    let nonce = Nonce::from_bytes([b'n'; 16]);
    if let Some(request) = Request::decode(bytes, nonce) {
        assert_eq!(Request::decode(&request.encode(nonce), nonce), Some(request));
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
    fn requests_and_replies_round_trip() {
        let nonce = Nonce::from_bytes([5; 16]);
        for request in [Request::Ledger, Request::Data { slot: 7, generation: u64::MAX }, Request::LeaseTable]
        {
            assert_eq!(Request::decode(&request.encode(nonce), nonce), Some(request));
            assert_eq!(Request::decode(&request.encode(nonce), Nonce::from_bytes([6; 16])), None);
        }
        for reply in [
            Reply::Ok { is_exclusive: false },
            Reply::Ok { is_exclusive: true },
            Reply::Stale(12),
            Reply::NotPermitted(Allow::SameUser),
            Reply::NotPermitted(Allow::Handle),
            Reply::BadRequest,
            Reply::Busy,
        ] {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Request::decode(&bytes, Nonce::from_bytes([0; 16]));
            let _ = Reply::decode(&bytes);
        }
    }
}
