//! The messages between an importer and a server. Numbers are little-endian. Each side takes the
//! other's bytes for untrusted.
//!
//! A request is a [`Header`] and a body, and has a number of its importer's choice, which its reply
//! repeats. Requests that name a block carry its handle, so that the server keeps no state for a
//! block that it does not serve at the moment.

use umf_ipc::{HANDLE_SIZE, Handle};

use crate::route::MAX_NAME;

/// The longest request: a write with its data.
pub(crate) const MAX_REQUEST: usize = 4096;
/// The most data of a write that is in the request.
pub(crate) const MAX_INLINE: usize = MAX_REQUEST - 128;
/// The most data that a server reads for one request to write.
pub(crate) const MAX_PULL: usize = 1 << 20;
/// The requests of an importer that are not answered yet, at most.
pub(crate) const WINDOW: usize = 16;
/// The longest text of an error.
const MAX_TEXT: usize = 512;

const MAGIC: [u8; 2] = *b"UR";
const VERSION: u8 = 1;

/// What all messages begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    kind: u8,
    /// The session; 0 in a [`Request::Hello`].
    pub session: u64,
    /// The request.
    pub request: u64,
}

/// A message to a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request<'m> {
    /// Begins a session, for the importer with this address.
    Hello { server: [u8; 16], name: &'m [u8] },
    /// Asks how to read a block one-sided.
    Locate { handle: Handle },
    /// Asks for bytes of a block.
    Read { handle: Handle, offset: u64, length: u32 },
    /// The importer does not use the key of a block any more. Has no reply.
    Release { slot: u32, generation: u64 },
    /// Asks for a grant to write, for some milliseconds.
    Grant { handle: Handle, milliseconds: u32 },
    /// Writes data of the message.
    Write { grant: u64, offset: u64, data: &'m [u8] },
    /// Writes data that the server reads from the importer's memory.
    WriteFrom { grant: u64, offset: u64, length: u32, key: u64, address: u64 },
    /// Ends a grant.
    EndGrant { grant: u64 },
    /// Ends the session. Has no reply.
    Bye,
    /// Asks for nothing.
    Ping,
}

/// A message of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply<'m> {
    /// The session, and limits: bytes of a [`Request::Read`]; milliseconds without a request, and
    /// of a grant.
    Welcome { session: u64, max_small: u32, idle: u32, max_grant: u32 },
    /// Where the block is, and its slot: generation and nonce.
    Located { key: u64, address: u64, slot_key: u64, slot_address: u64 },
    /// The block can only be read by messages.
    ByMessages,
    /// Bytes of a block that was current before and after they were read.
    Data { data: &'m [u8] },
    /// A grant, and the time for which it lasts.
    Granted { grant: u64, milliseconds: u32 },
    /// It is done.
    Done,
    /// The block is stale.
    Stale { now: u64 },
    /// There is no such grant.
    NotGranted,
    /// Another server.
    OtherServer,
    /// It failed for another reason.
    Failed { text: &'m str },
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub &'static str);

/// Takes numbers and bytes off the front.
struct Reader<'m>(&'m [u8]);

impl<'m> Reader<'m> {
    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed("a message is cut"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn handle(&mut self) -> Result<Handle, Malformed> {
        Handle::from_bytes(&self.array::<HANDLE_SIZE>()?)
            .map_err(|_| Malformed("a message has a damaged handle"))
    }

    /// Takes the rest, of at most `max` bytes.
    fn rest(&mut self, max: usize) -> Result<&'m [u8], Malformed> {
        let rest = core::mem::take(&mut self.0);
        if rest.len() <= max { Ok(rest) } else { Err(Malformed("a message is too long")) }
    }

    fn header(&mut self) -> Result<Header, Malformed> {
        let [first, second, version, kind] = self.array()?;
        if [first, second] != MAGIC || version != VERSION {
            return Err(Malformed("a message is not of this version of umf"));
        }
        let _ = self.u32()?;
        Ok(Header { kind, session: self.u64()?, request: self.u64()? })
    }

    const fn end<T>(&self, message: T) -> Result<T, Malformed>
    where
        T: Copy,
    {
        if self.0.is_empty() { Ok(message) } else { Err(Malformed("a message is too long")) }
    }
}

fn header(kind: u8, session: u64, request: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAX_REQUEST);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, kind, 0, 0, 0, 0]);
    bytes.extend(session.to_le_bytes());
    bytes.extend(request.to_le_bytes());
    bytes
}

impl<'m> Request<'m> {
    pub(crate) fn encode(&self, session: u64, request: u64) -> Vec<u8> {
        let kind = match self {
            Self::Hello { .. } => 1,
            Self::Locate { .. } => 2,
            Self::Read { .. } => 3,
            Self::Release { .. } => 4,
            Self::Grant { .. } => 5,
            Self::Write { .. } => 6,
            Self::WriteFrom { .. } => 7,
            Self::EndGrant { .. } => 8,
            Self::Bye => 9,
            Self::Ping => 10,
        };
        let mut bytes = header(kind, session, request);
        match self {
            Self::Hello { server, name } => {
                bytes.extend(server);
                bytes.extend(*name);
            }
            Self::Locate { handle } => bytes.extend(handle.as_bytes()),
            Self::Read { handle, offset, length } => {
                bytes.extend(handle.as_bytes());
                bytes.extend(offset.to_le_bytes());
                bytes.extend(length.to_le_bytes());
            }
            Self::Release { slot, generation } => {
                bytes.extend(slot.to_le_bytes());
                bytes.extend(generation.to_le_bytes());
            }
            Self::Grant { handle, milliseconds } => {
                bytes.extend(handle.as_bytes());
                bytes.extend(milliseconds.to_le_bytes());
            }
            Self::Write { grant, offset, data } => {
                bytes.extend(grant.to_le_bytes());
                bytes.extend(offset.to_le_bytes());
                bytes.extend(*data);
            }
            Self::WriteFrom { grant, offset, length, key, address } => {
                bytes.extend(grant.to_le_bytes());
                bytes.extend(offset.to_le_bytes());
                bytes.extend(length.to_le_bytes());
                bytes.extend(key.to_le_bytes());
                bytes.extend(address.to_le_bytes());
            }
            Self::EndGrant { grant } => bytes.extend(grant.to_le_bytes()),
            Self::Bye | Self::Ping => {}
        }
        bytes
    }

    pub(crate) fn decode(bytes: &'m [u8]) -> Result<(Header, Self), Malformed> {
        let mut reader = Reader(bytes);
        let header = reader.header()?;
        let request = match header.kind {
            1 => Self::Hello { server: reader.array()?, name: reader.rest(MAX_NAME)? },
            2 => Self::Locate { handle: reader.handle()? },
            3 => Self::Read { handle: reader.handle()?, offset: reader.u64()?, length: reader.u32()? },
            4 => Self::Release { slot: reader.u32()?, generation: reader.u64()? },
            5 => Self::Grant { handle: reader.handle()?, milliseconds: reader.u32()? },
            6 => Self::Write { grant: reader.u64()?, offset: reader.u64()?, data: reader.rest(MAX_INLINE)? },
            7 => Self::WriteFrom {
                grant: reader.u64()?,
                offset: reader.u64()?,
                length: reader.u32()?,
                key: reader.u64()?,
                address: reader.u64()?,
            },
            8 => Self::EndGrant { grant: reader.u64()? },
            9 => Self::Bye,
            10 => Self::Ping,
            _ => return Err(Malformed("a request is of an unknown kind")),
        };
        reader.end(())?;
        Ok((header, request))
    }
}

impl<'m> Reply<'m> {
    pub(crate) fn encode(&self, session: u64, request: u64) -> Vec<u8> {
        let kind = match self {
            Self::Welcome { .. } => 1,
            Self::Located { .. } => 2,
            Self::ByMessages => 3,
            Self::Data { .. } => 4,
            Self::Granted { .. } => 5,
            Self::Done => 6,
            Self::Stale { .. } => 7,
            Self::NotGranted => 8,
            Self::OtherServer => 9,
            Self::Failed { .. } => 10,
        };
        let mut bytes = header(kind, session, request);
        match self {
            Self::Welcome { session, max_small, idle, max_grant } => {
                bytes.extend(session.to_le_bytes());
                bytes.extend(max_small.to_le_bytes());
                bytes.extend(idle.to_le_bytes());
                bytes.extend(max_grant.to_le_bytes());
            }
            Self::Located { key, address, slot_key, slot_address } => {
                for number in [key, address, slot_key, slot_address] {
                    bytes.extend(number.to_le_bytes());
                }
            }
            Self::Data { data } => bytes.extend(*data),
            Self::Granted { grant, milliseconds } => {
                bytes.extend(grant.to_le_bytes());
                bytes.extend(milliseconds.to_le_bytes());
            }
            Self::Stale { now } => bytes.extend(now.to_le_bytes()),
            Self::Failed { text } => {
                let mut end = text.len().min(MAX_TEXT);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                bytes.extend(&text.as_bytes()[..end]);
            }
            Self::ByMessages | Self::Done | Self::NotGranted | Self::OtherServer => {}
        }
        bytes
    }

    pub(crate) fn decode(bytes: &'m [u8]) -> Result<(Header, Self), Malformed> {
        let mut reader = Reader(bytes);
        let header = reader.header()?;
        let reply = match header.kind {
            1 => Self::Welcome {
                session: reader.u64()?,
                max_small: reader.u32()?,
                idle: reader.u32()?,
                max_grant: reader.u32()?,
            },
            2 => Self::Located {
                key: reader.u64()?,
                address: reader.u64()?,
                slot_key: reader.u64()?,
                slot_address: reader.u64()?,
            },
            3 => Self::ByMessages,
            4 => Self::Data { data: reader.rest(usize::MAX)? },
            5 => Self::Granted { grant: reader.u64()?, milliseconds: reader.u32()? },
            6 => Self::Done,
            7 => Self::Stale { now: reader.u64()? },
            8 => Self::NotGranted,
            9 => Self::OtherServer,
            10 => {
                let text = str::from_utf8(reader.rest(MAX_TEXT)?);
                Self::Failed { text: text.map_err(|_| Malformed("the text of an error is no text"))? }
            }
            _ => return Err(Malformed("a reply is of an unknown kind")),
        };
        reader.end(())?;
        Ok((header, reply))
    }
}

/// Entry points of fuzz targets.
#[cfg(fuzzing)]
pub mod fuzz {
    /// Decodes bytes as a request and as a reply.
    pub fn decode(bytes: &[u8]) {
        if let Ok((header, request)) = super::Request::decode(bytes) {
            let again = request.encode(header.session, header.request);
            assert_eq!(super::Request::decode(&again), Ok((header, request.clone())));
        }
        if let Ok((header, reply)) = super::Reply::decode(bytes) {
            let again = reply.encode(header.session, header.request);
            assert_eq!(super::Reply::decode(&again), Ok((header, reply.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0_u8..12) {
            let mut message = header(kind, 1, 2);
            message.extend(&bytes);
            for bytes in [&bytes[..], &message] {
                if let Ok((header, request)) = Request::decode(bytes) {
                    let again = request.encode(header.session, header.request);
                    prop_assert_eq!(Request::decode(&again), Ok((header, request.clone())));
                }
                if let Ok((header, reply)) = Reply::decode(bytes) {
                    let again = reply.encode(header.session, header.request);
                    prop_assert_eq!(Reply::decode(&again), Ok((header, reply.clone())));
                }
            }
        }
    }

    #[test]
    fn long_text_of_an_error_is_cut_between_characters() {
        let text = "é".repeat(600);
        let bytes = Reply::Failed { text: &text }.encode(1, 2);
        let Ok((_, Reply::Failed { text: cut })) = Reply::decode(&bytes) else { panic!("it decodes") };
        assert_eq!(cut, "é".repeat(MAX_TEXT / 2));
    }
}
