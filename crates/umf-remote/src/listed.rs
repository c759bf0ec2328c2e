//! The grants of a server as other processes see them: `umf ps` and `umf why` list them.
//!
//! A server that has given a grant has a memfd with a list of its grants, which it writes as a
//! whole whenever one begins or ends. A reader finds it in `/proc/<pid>/fd`, so that it needs the
//! rights to inspect the process. The CRC-32 detects a list that is being written.
//!
//! | bytes | content (little-endian) |
//! |---|---|
//! | 8 | `UMFGRANT` |
//! | 4 | CRC-32 of all that follows |
//! | 4 | number of grants |
//! | 120 each | nonce (16), generation (8), end: boot clock in ns (8), slot (4), importer (84) |

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::SealFlags;
use umf_ipc::{Handle, inspect};

const NAME: &str = "umf-remote-grants";
const MAGIC: [u8; 8] = *b"UMFGRANT";
const HEADER: usize = 16;
const ROW: usize = 120;
/// Where a row has the address of the importer.
const IMPORTER: usize = 36;
/// The most grants that are listed.
const MAX_LISTED: usize = 256;
const SIZE: usize = HEADER + MAX_LISTED * ROW;

/// A grant to write that a server has given to an importer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedGrant {
    nonce: [u8; 16],
    generation: u64,
    until: u64,
    /// The ledger slot of the block.
    pub slot: u32,
    /// The address of the importer, or its beginning.
    pub importer: String,
}

impl ListedGrant {
    /// `until` is a time of the boot clock, in nanoseconds.
    pub(crate) fn new(handle: &Handle, until: u64, importer: String) -> Self {
        let (nonce, generation) = (*handle.nonce().as_bytes(), handle.generation());
        Self { nonce, generation, until, slot: handle.slot(), importer }
    }

    /// Returns whether the grant is for the block of this handle.
    #[must_use]
    pub fn is_of(&self, handle: &Handle) -> bool {
        (&self.nonce, self.generation, self.slot)
            == (handle.nonce().as_bytes(), handle.generation(), handle.slot())
    }

    /// Returns the time that is left.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        Duration::from_nanos(self.until.saturating_sub(inspect::now()))
    }

    fn encode(&self) -> [u8; ROW] {
        let mut row = [0; ROW];
        row[..16].copy_from_slice(&self.nonce);
        row[16..24].copy_from_slice(&self.generation.to_le_bytes());
        row[24..32].copy_from_slice(&self.until.to_le_bytes());
        row[32..IMPORTER].copy_from_slice(&self.slot.to_le_bytes());
        row[IMPORTER..].iter_mut().zip(self.importer.bytes()).for_each(|(to, from)| *to = from);
        row
    }

    fn decode(row: &[u8; ROW]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(row.get(at..at + 8)?.try_into().ok()?));
        let importer: Vec<u8> = row[IMPORTER..].iter().copied().take_while(|byte| *byte != 0).collect();
        Some(Self {
            nonce: *row.first_chunk()?,
            generation: word(16)?,
            until: word(24)?,
            slot: u32::from_le_bytes(row[32..IMPORTER].try_into().ok()?),
            importer: inspect::plain(&String::from_utf8_lossy(&importer)),
        })
    }
}

fn encode(grants: &[ListedGrant]) -> Vec<u8> {
    let grants = &grants[..grants.len().min(MAX_LISTED)];
    let mut rest = Vec::with_capacity(SIZE);
    rest.extend((grants.len() as u32).to_le_bytes());
    grants.iter().for_each(|grant| rest.extend(grant.encode()));
    [&MAGIC[..], &crc32fast::hash(&rest).to_le_bytes(), &rest].concat()
}

/// Decodes a list. `None`: it is none, or it is being written.
fn decode(bytes: &[u8]) -> Option<Vec<ListedGrant>> {
    let (header, rows) = bytes.split_at_checked(HEADER)?;
    let count = u32::from_le_bytes(*header.last_chunk()?) as usize;
    let rows = rows.get(..count.checked_mul(ROW)?)?;
    let checksum = crc32fast::hash(bytes.get(12..HEADER + rows.len())?);
    if header[..8] != MAGIC || header[8..12] != checksum.to_le_bytes() {
        return None;
    }
    rows.as_chunks::<ROW>().0.iter().map(ListedGrant::decode).collect()
}

/// The list of a server.
#[derive(Debug, Default)]
pub(crate) struct GrantList {
    /// Made with the first grant.
    file: Option<OwnedFd>,
}

impl GrantList {
    /// Writes the list. Without a file, the grants are in force and not listed.
    pub(crate) fn write(&mut self, grants: &[ListedGrant]) {
        if let Err(errno) = self.try_write(grants) {
            tracing::debug!(%errno, "cannot list the grants of remote importers");
        }
    }

    fn try_write(&mut self, grants: &[ListedGrant]) -> rustix::io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => {
                let file = umf_os::memfd::create(NAME, SIZE as u64)?;
                umf_os::memfd::add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
                self.file.insert(file)
            }
        };
        rustix::io::pwrite(file, &encode(grants), 0).map(drop)
    }
}

/// Returns the grants in force that the server of a process has given. Empty if there are none, or
/// if the process may not be inspected. Another process wrote them: they may be forged.
#[must_use]
pub fn grants_of(pid: u32) -> Vec<ListedGrant> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let lists = entries.filter_map(|entry| {
        let path = entry.path();
        let link = std::fs::read_link(&path).ok()?;
        let name = link.to_str()?.strip_prefix("/memfd:")?;
        (name.strip_suffix(" (deleted)").unwrap_or(name) == NAME).then(|| read(path.to_str()?)).flatten()
    });
    lists.flatten().filter(|grant| !grant.time_left().is_zero()).collect()
}

fn read(path: &str) -> Option<Vec<ListedGrant>> {
    // Opens memory alone: another file could block.
    let found = umf_os::file::open_path(path).ok()?;
    let is_memory = umf_os::file::is_regular(&found).ok()?
        && umf_os::file::filesystem(&found).ok()? == umf_os::file::TMPFS_MAGIC
        && umf_os::file::size(&found).ok()? == SIZE as u64;
    if !is_memory {
        return None;
    }
    let file = umf_os::file::reopen(found.as_fd(), false).ok()?;
    let mut bytes = vec![0; SIZE];
    (0..8).find_map(|_| {
        umf_os::file::read_at(&file, &mut bytes, 0).ok()?;
        decode(&bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(slot: u32, importer: &str) -> ListedGrant {
        let until = inspect::now() + 60_000_000_000;
        ListedGrant { nonce: [7; 16], generation: 5, until, slot, importer: importer.to_owned() }
    }

    #[test]
    fn list_is_read_back_from_proc() {
        let grants = [grant(1, "10.0.0.1:4711 (tcp)"), grant(2, &"x".repeat(200))];
        let mut list = GrantList::default();
        list.write(&grants);
        let found = grants_of(std::process::id());
        assert_eq!(found[0], grants[0]);
        assert_eq!((found[1].slot, found[1].importer.len()), (2, ROW - IMPORTER));
        list.write(&[]);
        assert!(grants_of(std::process::id()).is_empty());
    }

    #[test]
    fn damaged_list_is_refused() {
        let bytes = encode(&[grant(1, "a"), grant(2, "b")]);
        assert_eq!(decode(&bytes).unwrap().len(), 2);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "{at}");
            assert_eq!(decode(&bytes[..at]), None, "{at}");
        }
    }
}
