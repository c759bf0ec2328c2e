//! The names under which ranks of a job are found.

use umf_ipc::system::boot_id_bytes;
use umf_os::process::random;

use crate::address::{SOCKET, is_plain};
use crate::wire::DIGITS;
use crate::{Error, LinkAddress, Result, sys};

/// The longest name of a job: with what else is in a socket's name it fits into an address.
const LONGEST: usize = 32;
/// The most ranks of a job.
pub(super) const MOST_RANKS: usize = 4096;

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

    fn prefix(&self) -> String {
        format!("{SOCKET}{}-{}:", sys::effective_uid(), self.name)
    }

    /// New digits, which nobody can have taken before.
    pub(super) fn digits() -> Result<[u8; DIGITS]> {
        let nonce = random().map_err(Error::system("getrandom"))?;
        let mut digits = [0; DIGITS];
        for (number, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[usize::from(nonce[number] % 16)];
        }
        Ok(digits)
    }

    /// The name of a rank's socket.
    pub(super) fn socket(&self, rank: usize, digits: [u8; DIGITS]) -> String {
        let prefix = self.prefix();
        format!("{prefix}{rank}:{}", String::from_utf8_lossy(&digits))
    }

    /// Where a process listens that says that it is this rank.
    pub(super) fn address(&self, rank: usize, digits: [u8; DIGITS]) -> LinkAddress {
        LinkAddress::new(boot_id_bytes(), 0, &self.socket(rank, digits))
    }

    /// Where processes listen that say that they are ranks of the job, and which; other users' too.
    pub(super) fn listening(&self) -> Result<Vec<(usize, LinkAddress)>> {
        let table = std::fs::read("/proc/net/unix").map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            Error::system("reading /proc/net/unix, where the ranks of a job are found")(errno)
        })?;
        let (prefix, boot_id) = (self.prefix(), boot_id_bytes());
        let names = listening(&table, prefix.as_bytes());
        Ok(names.map(|(rank, name)| (rank, LinkAddress::new(boot_id, 0, name))).collect())
    }
}

/// Ranks and names in the kernel's table that begin with `prefix` and go on with a rank and digits, of sockets that listen.
fn listening<'t>(table: &'t [u8], prefix: &'t [u8]) -> impl Iterator<Item = (usize, &'t str)> {
    table.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        // Num RefCount Protocol Flags Type St Inode Path
        let (flags, name) = (fields.nth(3)?, fields.nth(3)?);
        let name = core::str::from_utf8(name.strip_prefix(b"@")?).ok()?;
        let (number, digits) = name.strip_prefix(core::str::from_utf8(prefix).ok()?)?.split_once(':')?;
        let rank: usize = number.parse().ok()?;
        let is_one = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        (flags == b"00010000" && is_one && rank < MOST_RANKS && rank.to_string() == number)
            .then_some((rank, name))
    })
}

#[cfg(fuzzing)]
pub(super) fn fuzz(table: &[u8]) {
    for (rank, name) in listening(table, b"umf-link-0-job:") {
        assert!(rank < MOST_RANKS && LinkAddress::new([1; 16], 0, name).socket() == name);
    }
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
            line("00010000", "@umf-link-0-job:01:0123456789abcdef"),
            line("00010000", "@umf-link-0-job:+1:0123456789abcdef"),
            line("00010000", "@umf-link-0-job:4096:0123456789abcdef"),
            line("00010000", "@umf-link-0-jobs:1:0123456789abcdef"),
            line("00010000", "umf-link-0-job:1:0123456789abcdef"),
            line("00010000", ""),
            line("00010000", "@umf-link-0-job:1:fedcba9876543210"),
        ]
        .concat();
        let found: Vec<_> = listening(table.as_bytes(), b"umf-link-0-job:").collect();
        let expected = [
            (1, "umf-link-0-job:1:0123456789abcdef"),
            (11, "umf-link-0-job:11:0123456789abcdef"),
            (1, "umf-link-0-job:1:fedcba9876543210"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn names_of_jobs() {
        for name in ["", "a b", "ä", &"j".repeat(33)] {
            assert!(matches!(Job::new(name), Err(Error::BadName { .. })), "{name}");
        }
        let job = Job::new(&"j".repeat(32)).unwrap();
        let (one, other) = (Job::digits().unwrap(), Job::digits().unwrap());
        let socket = job.socket(MOST_RANKS, one);
        assert_eq!(LinkAddress::new([1; 16], 0, &socket).socket(), socket, "it fits into an address");
        assert_ne!(one, other);
    }

    proptest! {
        #[test]
        fn whatever_the_table(table in prop::collection::vec(any::<u8>(), 0..300), text in "[ @a:0-9\n]{0,200}") {
            prop_assert!(listening(&table, b"umf-").count() <= table.len());
            prop_assert!(listening(text.as_bytes(), b"a").all(|(_, name)| name.starts_with('a')));
        }
    }
}
