//! The names under which ranks of a job are found.

use umf_ipc::system::{boot_id_bytes, random};

use crate::address::{SOCKET, is_plain};
use crate::{Error, LinkAddress, Result, sys};

/// The longest name of a job: with what else is in a socket's name it fits into an address.
const LONGEST: usize = 32;
/// The most ranks of a job.
pub(super) const MOST_RANKS: usize = 4096;
/// Digits that tell processes apart which say that they are the same rank.
const DIGITS: usize = 16;

/// A job of this user.
#[derive(Clone, Debug)]
pub(super) struct Job {
    name: String,
}

impl Job {
    pub(super) fn new(name: &str) -> Result<Self> {
        let why = if name.is_empty() {
            "it is empty"
        } else if name.len() > LONGEST {
            "jobs have names of up to 32 characters"
        } else if !name.bytes().all(is_plain) {
            "letters and digits of ASCII and . _ : / + = @ - are allowed"
        } else {
            return Ok(Self { name: name.to_owned() });
        };
        Err(Error::BadName { name: name.chars().take(64).collect(), why })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.name
    }

    fn prefix(&self, rank: usize) -> String {
        format!("{SOCKET}{}-{}:{rank}:", sys::effective_uid(), self.name)
    }

    /// A new name for a rank, which nobody can have taken before.
    pub(super) fn socket(&self, rank: usize) -> Result<String> {
        let nonce = random().map_err(Error::system("getrandom"))?;
        let digits = data_encoding::HEXLOWER.encode(&nonce[..DIGITS / 2]);
        Ok(format!("{}{digits}", self.prefix(rank)))
    }

    /// Where processes listen that say that they are this rank; other users' too.
    pub(super) fn find(&self, rank: usize) -> Result<Vec<LinkAddress>> {
        let table = std::fs::read("/proc/net/unix").map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            Error::system("reading /proc/net/unix, where the ranks of a job are found")(errno)
        })?;
        let prefix = self.prefix(rank);
        let names = listening(&table, prefix.as_bytes());
        Ok(names.map(|name| LinkAddress::new(boot_id_bytes(), 0, name)).collect())
    }
}

/// Names in the kernel's table that begin with `prefix` and go on with digits, of sockets that listen.
fn listening<'t>(table: &'t [u8], prefix: &'t [u8]) -> impl Iterator<Item = &'t str> {
    table.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        // Num RefCount Protocol Flags Type St Inode Path
        let (flags, name) = (fields.nth(3)?, fields.nth(3)?);
        let name = name.strip_prefix(b"@")?;
        let digits = name.strip_prefix(prefix)?;
        let is_one = digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit);
        (flags == b"00010000" && is_one).then(|| core::str::from_utf8(name).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_listens_is_found_and_nobody_else() {
        let line = |flags: &str, name: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} 0005 01 22136 {name}\n")
        };
        let table = [
            "Num       RefCount Protocol Flags    Type St Inode Path\n".to_owned(),
            line("00010000", "@umf-link-0-job:1:0123456789abcdef"),
            line("00000000", "@umf-link-0-job:1:0123456789abcde0"),
            line("00010000", "@umf-link-0-job:1:0123456789abcdef0"),
            line("00010000", "@umf-link-0-job:1:0123456789abcdeg"),
            line("00010000", "@umf-link-0-job:1:2:0123456789abcdef"),
            line("00010000", "@umf-link-0-job:11:0123456789abcdef"),
            line("00010000", "umf-link-0-job:1:0123456789abcdef"),
            line("00010000", ""),
            line("00010000", "@umf-link-0-job:1:fedcba9876543210"),
        ]
        .concat();
        let found: Vec<_> = listening(table.as_bytes(), b"umf-link-0-job:1:").collect();
        assert_eq!(found, ["umf-link-0-job:1:0123456789abcdef", "umf-link-0-job:1:fedcba9876543210"]);
    }

    #[test]
    fn names_of_jobs() {
        for name in ["", "a b", "ä", &"j".repeat(33)] {
            assert!(matches!(Job::new(name), Err(Error::BadName { .. })), "{name}");
        }
        let job = Job::new(&"j".repeat(32)).unwrap();
        let socket = job.socket(MOST_RANKS).unwrap();
        assert_eq!(LinkAddress::new([1; 16], 0, &socket).socket(), socket, "it fits into an address");
        assert_ne!(job.socket(1).unwrap(), job.socket(1).unwrap());
    }

    proptest! {
        #[test]
        fn whatever_the_table(table in prop::collection::vec(any::<u8>(), 0..300), text in "[ @a:0-9\n]{0,200}") {
            prop_assert!(listening(&table, b"umf-").count() <= table.len());
            prop_assert!(listening(text.as_bytes(), b"a").all(|name| name.starts_with('a')));
        }
    }
}
