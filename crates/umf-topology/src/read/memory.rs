//! Amounts of memory, as the kernel writes them.

use super::Reader;
use crate::{Error, Memory, Result};

impl Reader<'_> {
    /// Total and free memory of a file such as `Node 0 MemTotal: 1024 kB`, or `MemTotal: 1024 kB`.
    pub(super) fn memory(&self, path: &str) -> Result<Memory> {
        let text = self.text_with(path, &["MemTotal:", "MemFree:"])?;
        let text = text.ok_or_else(|| Error::NotThere { path: self.source.path(path) })?;
        let bytes = |key: &str| {
            let expected = "lines such as `MemTotal: 1024 kB` and `MemFree: 512 kB`";
            bytes(&text, key).ok_or_else(|| self.malformed(path, &text, expected))
        };
        Ok(Memory { total: bytes("MemTotal")?, free: bytes("MemFree")? })
    }
}

/// The bytes that the line `key` gives, in a file such as `Node 0 MemTotal: 1024 kB`.
fn bytes(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            // Just before the colon: as the lines are found that are kept of the file.
            (name.rsplit(char::is_whitespace).next()? == key).then_some(value)
        })
        .and_then(|value| {
            let mut words = value.split_whitespace();
            let (number, unit) = (words.next()?, words.next()?);
            (unit == "kB").then(|| number.parse::<u64>().ok()?.checked_mul(1024))?
        })
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn lines_of_nodes_and_of_the_whole_machine() {
        let text = "Node 3 MemTotal:         773788 kB\nNode 3 MemFree: 1 kB\nNode 3 HugePages_Total:     0";
        assert_eq!(bytes(text, "MemTotal"), Some(773_788 * 1024));
        assert_eq!(bytes("MemTotal: 5 kB", "MemTotal"), Some(5120));
        for wrong in [
            "",
            "MemTotal",
            "MemTotal:",
            "MemTotal: 5",
            "MemTotal: 5 MB",
            "MemTotal: -5 kB",
            "SwapMemTotal: 5 kB",
            "MemTotal : 5 kB",
        ] {
            assert_eq!(bytes(wrong, "MemTotal"), None, "{wrong}");
        }
        assert_eq!(bytes("MemTotal: 18446744073709551615 kB", "MemTotal"), None);
    }
}
