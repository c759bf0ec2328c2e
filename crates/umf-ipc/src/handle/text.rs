//! The text form: `umf1.` and URL-safe base64 without padding.

use core::fmt;
use core::str::FromStr;

use data_encoding::BASE64URL_NOPAD;

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
