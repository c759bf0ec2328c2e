//! serde: the text form in formats for people, the bytes in others.

use core::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Handle, SIZE};

impl Serialize for Handle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.bytes)
        }
    }
}

impl<'de> Deserialize<'de> for Handle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Text)
        } else {
            deserializer.deserialize_bytes(Bytes)
        }
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Handle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the text of a umf handle")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Handle, E> {
        text.parse().map_err(E::custom)
    }
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Handle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the 256 bytes of a umf handle")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Handle, E> {
        Handle::from_bytes(bytes).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Handle, A::Error> {
        let mut bytes = [0; SIZE];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = sequence.next_element()?.ok_or_else(|| A::Error::invalid_length(index, &self))?;
        }
        Handle::from_bytes(&bytes).map_err(A::Error::custom)
    }
}
