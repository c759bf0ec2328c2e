//! Proof of a key: each end of a connection shows the other that it knows a secret of 128 bits,
//! without sending it. For connections between processes whose users cannot be compared, as in two
//! user namespaces, and against processes that have taken the name of a socket.
//!
//! 1. The client sends a random challenge (*hello*).
//! 2. The server answers with a challenge of its own and with its tag: a keyed hash of both
//!    challenges, the nonce and the word "server".
//! 3. The client checks the tag, and sends its own, of the word "client" (*proof*). It sends no
//!    request before. The server answers nothing to a right tag.
//!
//! The hash is SipHash-2-4 with 128 bits, a keyed pseudorandom function for short messages. Its key
//! is derived from the secret and from the name of the socket, as each end knows it: a process that
//! has taken one name cannot pass the packets on to the server of another one. A tag
//! is useless in any other connection, because each end has chosen one of the challenges. The
//! connection itself is not encrypted: a process that stands between both ends (it can rename files
//! in the directory) can pass the proof on, and gets what the server sends.

use core::hash::Hasher;
use std::fmt;

use rustix::io::Errno;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::identity::Nonce;

/// Bytes of each packet.
pub(super) const PACKET_SIZE: usize = 40;
const MAGIC: [u8; 4] = *b"UMFP";
const VERSION: u16 = 1;
const HELLO: u16 = 1;
const CHALLENGE: u16 = 2;
const PROOF: u16 = 3;

type Half = [u8; 16];

/// A secret of 128 bits. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl Key {
    /// Returns the key with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns a name for a socket whose peers have this key. It does not reveal the key.
    #[must_use]
    pub fn public_name(self) -> Nonce {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(b"name of a socket");
        Nonce::from_bytes(hasher.finish128().as_bytes())
    }

    /// Returns a key that processes derive from a name which they have in common, and which other
    /// processes do not know: of a domain, an endpoint or a job. `purpose` separates uses of a
    /// name.
    #[must_use]
    pub fn of_name(purpose: &str, name: &str) -> Self {
        let mut hasher = SipHasher24::new_with_key(b"umf key of name ");
        hasher.write_u64(purpose.len() as u64);
        hasher.write(purpose.as_bytes());
        hasher.write(name.as_bytes());
        Self(hasher.finish128().as_bytes())
    }

    /// Returns the key of proofs at the socket with this name.
    fn of_socket(self, socket: &str) -> Self {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(b"proof at a socket");
        hasher.write(socket.as_bytes());
        Self(hasher.finish128().as_bytes())
    }

    fn tag(self, role: &str, nonce: Nonce, challenges: [Half; 2]) -> Half {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(role.as_bytes());
        hasher.write(nonce.as_bytes());
        challenges.iter().for_each(|challenge| hasher.write(challenge));
        hasher.finish128().as_bytes()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Compares all bytes, whatever the first ones are.
fn is_same(one: Half, other: Half) -> bool {
    one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

fn encode(kind: u16, first: Half, second: Half) -> [u8; PACKET_SIZE] {
    let mut bytes = [0; PACKET_SIZE];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&kind.to_le_bytes());
    bytes[8..24].copy_from_slice(&first);
    bytes[24..40].copy_from_slice(&second);
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u16, Half, Half)> {
    let bytes: &[u8; PACKET_SIZE] = bytes.try_into().ok()?;
    let is_valid = bytes[0..4] == MAGIC && bytes[4..6] == VERSION.to_le_bytes();
    let half = |from: usize| core::array::from_fn(|byte| bytes[from + byte]);
    is_valid.then(|| (u16::from_le_bytes([bytes[6], bytes[7]]), half(8), half(24)))
}

/// The client's end, before it has seen the server's challenge.
#[derive(Debug)]
pub struct ClientProof {
    key: Key,
    nonce: Nonce,
    challenge: Half,
}

impl ClientProof {
    /// Returns the end with a random challenge, for a connection to the socket with this name.
    ///
    /// # Errors
    /// Those of `getrandom(2)`.
    pub fn new(key: Key, nonce: Nonce, socket: &str) -> Result<Self, Errno> {
        Ok(Self { key: key.of_socket(socket), nonce, challenge: umf_os::process::random()? })
    }

    /// Returns the first packet to send.
    #[must_use]
    pub fn hello(&self) -> [u8; PACKET_SIZE] {
        encode(HELLO, self.challenge, *self.nonce.as_bytes())
    }

    /// Checks the server's answer. Returns the packet to send next; `None` if the server does not
    /// have the key, so that nothing must be sent.
    #[must_use]
    pub fn check(self, answer: &[u8]) -> Option<[u8; PACKET_SIZE]> {
        let (kind, challenge, tag) = decode(answer)?;
        let challenges = [self.challenge, challenge];
        let is_right = kind == CHALLENGE && is_same(tag, self.key.tag("server", self.nonce, challenges));
        let own = self.key.tag("client", self.nonce, challenges);
        is_right.then(|| encode(PROOF, own, *self.nonce.as_bytes()))
    }
}

/// The server's end of one connection.
#[derive(Debug)]
pub struct ServerProof {
    key: Key,
    nonce: Nonce,
    /// Those of the hello that was answered last.
    challenges: Option<[Half; 2]>,
}

/// The result of a packet for [`ServerProof::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofStep {
    /// It is no packet of a proof.
    Other,
    /// The packet to send.
    Answer([u8; PACKET_SIZE]),
    /// The client has the key.
    Proven,
    /// The client does not have the key, or broke the protocol.
    Wrong,
}

impl ServerProof {
    /// Returns the end of a new connection, which the socket with this name accepted.
    #[must_use]
    pub fn new(key: Key, nonce: Nonce, socket: &str) -> Self {
        Self { key: key.of_socket(socket), nonce, challenges: None }
    }

    /// Takes a packet of the client.
    pub fn receive(&mut self, bytes: &[u8]) -> ProofStep {
        let Some((kind, first, second)) = decode(bytes) else { return ProofStep::Other };
        if second != *self.nonce.as_bytes() {
            return ProofStep::Wrong;
        }
        match (kind, self.challenges.take()) {
            (HELLO, _) => {
                let Ok(own) = umf_os::process::random() else { return ProofStep::Wrong };
                let challenges = [first, own];
                self.challenges = Some(challenges);
                ProofStep::Answer(encode(CHALLENGE, own, self.key.tag("server", self.nonce, challenges)))
            }
            (PROOF, Some(challenges)) if is_same(first, self.key.tag("client", self.nonce, challenges)) => {
                ProofStep::Proven
            }
            _ => ProofStep::Wrong,
        }
    }
}

/// Fuzz target: no packet proves a key that its sender does not have.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    let nonce = Nonce::from_bytes([b'n'; 16]);
    let mut server = ServerProof::new(Key::new([7; 16]), nonce, "socket");
    for packet in bytes.chunks(PACKET_SIZE) {
        assert_ne!(server.receive(packet), ProofStep::Proven);
    }
    assert_eq!(ClientProof { key: Key::new([7; 16]), nonce, challenge: [1; 16] }.check(bytes), None);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const NONCE: Nonce = Nonce::from_bytes([3; 16]);
    const SOCKET: &str = "umf-a";

    fn answer(server: &mut ServerProof, packet: &[u8]) -> [u8; PACKET_SIZE] {
        match server.receive(packet) {
            ProofStep::Answer(answer) => answer,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn ends_with_the_same_key_prove_it() {
        let key = Key::new([9; 16]);
        let (client, mut server) =
            (ClientProof::new(key, NONCE, SOCKET).unwrap(), ServerProof::new(key, NONCE, SOCKET));
        let answer = answer(&mut server, &client.hello());
        let proof = client.check(&answer).unwrap();
        assert_eq!(server.receive(&proof), ProofStep::Proven);
        assert_eq!(server.receive(&proof), ProofStep::Wrong, "once");
        assert_eq!(server.receive(b"other"), ProofStep::Other);
    }

    #[test]
    fn other_keys_nonces_and_replays_prove_nothing() {
        let (right, wrong) = (Key::new([9; 16]), Key::new([8; 16]));
        let client = |key| ClientProof::new(key, NONCE, SOCKET).unwrap();
        // The server does not have the key: the client sends nothing more.
        let one = client(right);
        let mut squatter = ServerProof::new(wrong, NONCE, SOCKET);
        let answered = answer(&mut squatter, &one.hello());
        assert_eq!(one.check(&answered), None);
        // The client does not have the key.
        let mut server = ServerProof::new(right, NONCE, SOCKET);
        let guess = ClientProof { key: wrong, nonce: NONCE, challenge: [1; 16] };
        let challenge = answer(&mut server, &guess.hello());
        let (_, own, _) = decode(&challenge).unwrap();
        let tag = wrong.of_socket(SOCKET).tag("client", NONCE, [[1; 16], own]);
        assert_eq!(server.receive(&encode(PROOF, tag, *NONCE.as_bytes())), ProofStep::Wrong);
        // The server's own tag, sent back.
        let challenge = answer(&mut server, &guess.hello());
        let (_, _, tag) = decode(&challenge).unwrap();
        assert_eq!(server.receive(&encode(PROOF, tag, *NONCE.as_bytes())), ProofStep::Wrong);
        // A proof of another connection.
        let two = client(right);
        let proof = {
            let mut first = ServerProof::new(right, NONCE, SOCKET);
            let answered = answer(&mut first, &two.hello());
            two.check(&answered).unwrap()
        };
        assert_eq!(server.receive(&proof), ProofStep::Wrong, "without a hello");
        let _ = answer(&mut server, &client(right).hello());
        assert_eq!(server.receive(&proof), ProofStep::Wrong);
        let other = ClientProof::new(right, Nonce::from_bytes([4; 16]), SOCKET).unwrap();
        assert_eq!(server.receive(&other.hello()), ProofStep::Wrong);
    }

    /// A process that has taken another name of the same key passes the packets on.
    #[test]
    fn proof_for_another_socket_proves_nothing() {
        let key = Key::new([9; 16]);
        let client = ClientProof::new(key, NONCE, "umf-taken").unwrap();
        let mut server = ServerProof::new(key, NONCE, SOCKET);
        let answered = answer(&mut server, &client.hello());
        assert_eq!(client.check(&answered), None);
    }

    #[test]
    fn key_is_not_shown_and_names_differ() {
        assert_eq!(format!("{:?}", Key::new(*b"secretsecretsecr")), "Key(..)");
        assert_ne!(Key::of_name("domain", "a"), Key::of_name("domain", "b"));
        assert_ne!(Key::of_name("domain", "a"), Key::of_name("domaina", ""));
        let key = Key::of_name("domain", "a");
        assert_ne!(key.public_name().as_bytes(), key.as_bytes());
        assert_ne!(key.public_name(), Key::of_name("domain", "b").public_name());
    }
}
