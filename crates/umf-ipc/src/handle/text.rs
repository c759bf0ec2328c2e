//! The text form, `umf1.` and URL-safe base64 without padding; and serde: the text form in formats
//! for people, the bytes in others.

use core::fmt;
use core::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use serde_core::de::{Error as _, SeqAccess, Visitor};
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

use super::{DecodeError, Handle, SIZE};

const PREFIX: &str = "umf1.";

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", BASE64URL_NOPAD.encode_display(&self.bytes))
    }
}

impl FromStr for Handle {
    type Err = DecodeError;

    /// Reads the text form. White space around it is passed over, since it often travels as a line.
    fn from_str(text: &str) -> Result<Self, DecodeError> {
        let text = text.trim_ascii();
        let wrong = |why| DecodeError::Text { why };
        let body = text.strip_prefix(PREFIX).ok_or(wrong("it does not begin with \"umf1.\""))?;
        let mut bytes = [0; SIZE];
        match BASE64URL_NOPAD.decode_len(body.len()) {
            Ok(length) if length == SIZE => {}
            Ok(_) | Err(_) => return Err(wrong("its length is wrong, it was cut or something was added")),
        }
        BASE64URL_NOPAD
            .decode_mut(body.as_bytes(), &mut bytes)
            .map_err(|_| wrong("it contains characters outside A-Z a-z 0-9 - _"))?;
        Self::from_bytes(&bytes)
    }
}

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

    fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<Handle, E> {
        text.parse().map_err(E::custom)
    }
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Handle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the 256 bytes of a umf handle")
    }

    fn visit_bytes<E: serde_core::de::Error>(self, bytes: &[u8]) -> Result<Handle, E> {
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
