//! Names: of a domain, and of the abstract sockets that its participants bind.

use crate::number::Tag;
use crate::{Error, Result};

/// With the rest of an abstract socket's name it has to fit 107 bytes.
const MAX_LENGTH: usize = 64;

/// A domain is known by its name and the user that its participants run as.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    text: String,
    uid: u32,
}

impl Name {
    pub(crate) fn new(text: &str, uid: u32) -> Result<Self> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/+=@-".contains(&byte);
        let why = if text.is_empty() {
            "it is empty"
        } else if text.len() > MAX_LENGTH {
            "it has more than 64 characters"
        } else if !text.bytes().all(good) {
            "letters and digits of ASCII and . _ : / + = @ - are allowed"
        } else {
            return Ok(Self { text: text.to_owned(), uid });
        };
        Err(Error::BadName { name: text.chars().take(MAX_LENGTH).collect(), why })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn tag(&self) -> Tag {
        Tag::of(format!("{} {}", self.uid, self.text).as_bytes())
    }

    /// Whoever has bound this one may change the table.
    pub(crate) fn arbiter(&self) -> Vec<u8> {
        format!("umf-domain-{}-arbiter-{}", self.uid, self.text).into_bytes()
    }

    /// Where the participant in this place answers.
    pub(crate) fn place(&self, place: u16) -> Vec<u8> {
        format!("umf-domain-{}-{place}-{}", self.uid, self.text).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names() {
        let longest = "x".repeat(64);
        for good in ["a", "job-42/rank:7", &longest] {
            let name = Name::new(good, u32::MAX).unwrap();
            for socket in [name.arbiter(), name.place(u16::MAX)] {
                assert!(socket.len() <= 107, "{}", socket.len());
            }
        }
        for bad in ["", "a b", "a\0", "ä", "a\n", &"x".repeat(65)] {
            assert!(matches!(Name::new(bad, 0), Err(Error::BadName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn no_name_is_another_ones() {
        // Nothing that a name can hold makes it look like another domain's, or like the arbiter.
        let names = ["1-a", "a", "arbiter-a", "0-1-a"].map(|text| Name::new(text, 1).unwrap());
        let mut sockets: Vec<_> = names.iter().flat_map(|name| [name.arbiter(), name.place(1)]).collect();
        sockets.sort();
        sockets.dedup();
        assert_eq!(sockets.len(), 8);
    }
}
