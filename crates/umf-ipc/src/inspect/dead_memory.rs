//! [`DeadMemory`]: memory of a producer that has ended, which importers keep. It can be released by
//! a process that is no importer, such as `umf gc`.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use super::{FoundLedger, Ledger, OwnerIdentity, OwnerStatus, Search, Survivors};
use crate::lease::layout::HeaderMapping;
use crate::lease::{Collector, KeptRanges};
use umf_os::FileIdentity;

/// The beginning of the path of host memory in `/proc/<pid>/maps`.
const MEMORY_PATH: &str = "/memfd:umf (deleted)";
/// The beginning of the path of a lease table in `/proc/<pid>/fd`.
const TABLE_PATH: &str = "/memfd:umf-leases";

/// Host memory of a producer that has ended, which importers have mapped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadMemory {
    /// The producer.
    pub producer: OwnerIdentity,
    /// The producer's name, empty if it is unknown.
    pub name: String,
    /// Processes that have a part of the memory mapped, sorted by process id.
    pub holders: Vec<u32>,
    /// Which processes may use the memory, apart from importers.
    pub survivors: Survivors,
    ledger: Ledger,
    files: Vec<MappedFile>,
}

/// A file of the memory, and a mapping of it in a holder.
#[derive(Clone, Debug)]
struct MappedFile {
    identity: FileIdentity,
    /// Below `/proc/<pid>/map_files`.
    path: String,
    /// Whether that process may write it. Otherwise it must not be released in its name: this
    /// process may have more rights.
    is_writable: bool,
}

/// Why memory of a dead producer stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeptReason {
    /// A process may use it without a lease.
    #[error("a process may use it without a lease: {0}")]
    Survivors(Survivors),
    /// This process may not open the mappings of others.
    #[error(
        "opening what other processes have mapped needs CAP_CHECKPOINT_RESTORE ({0}): run umf gc as root; the processes \
         release it themselves at their next open, close or poll"
    )]
    NotPermitted(Errno),
    /// No holder has a descriptor of the lease table.
    #[error(
        "no process has the producer's lease table any more: end the processes that have the memory mapped"
    )]
    NoLeaseTable,
    /// Another process collects it, or tickets of it are claimed all the time.
    #[error("another process releases it at this moment, or messages of it are opened: try again")]
    Busy,
    /// The memory was exported or opened read-only.
    #[error("it is mapped for reading only, so that it cannot be changed: it ends with its last mapping")]
    ReadOnly,
    /// A system call failed.
    #[error("{0} failed: {1}")]
    System(&'static str, Errno),
}

impl Search {
    /// Returns the host memory that importers keep of producers that have ended, as far as this
    /// process may inspect the importers.
    #[must_use]
    pub fn dead_memory(&self) -> Vec<DeadMemory> {
        self.found.iter().filter_map(DeadMemory::of).collect()
    }
}

impl DeadMemory {
    /// Returns the memory of a ledger's owner, if the owner has ended and a process has it mapped.
    fn of(found: &FoundLedger) -> Option<Self> {
        let ledger = &found.ledger;
        let survivors = ledger.survivors();
        let has_ended = match survivors {
            Survivors::Producer => false,
            Survivors::None | Survivors::Child => true,
            _ => found.owner == OwnerStatus::Ended,
        };
        if ledger.is_importers() || !has_ended {
            return None;
        }
        let contents = ledger.last_contents();
        let files: HashSet<_> = contents.map(|(_, content)| (content.device, content.inode)).collect();
        let mut mapped: BTreeMap<u64, MappedFile> = BTreeMap::new();
        let mut holders = Vec::new();
        for &pid in &found.holders {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            for (range, is_writable, identity) in maps.lines().filter_map(memory_of_line) {
                if files.contains(&(identity.device, identity.inode)) {
                    let path = format!("/proc/{pid}/map_files/{range}");
                    let file = MappedFile { identity, path, is_writable };
                    let known = mapped.entry(identity.inode).or_insert_with(|| file.clone());
                    if is_writable && !known.is_writable {
                        *known = file;
                    }
                    holders.push(pid);
                }
            }
        }
        holders.sort_unstable();
        holders.dedup();
        let name = ledger.statistics().map_or_else(String::new, |it| it.name);
        let producer = *ledger.identity();
        let files: Vec<_> = mapped.into_values().collect();
        let memory = Self { producer, name, holders, survivors, ledger: ledger.clone(), files };
        (!memory.files.is_empty()).then_some(memory)
    }

    /// Returns the bytes of its pages. `None` if this process may not open the mappings of others
    /// (`CAP_CHECKPOINT_RESTORE`).
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let bytes = |file: &MappedFile| fs::metadata(&file.path).ok().map(|it| it.blocks() * 512);
        self.files.iter().map(bytes).try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }

    /// Returns the bytes that the producer's pools had reserved when it last published them: at
    /// most about this much is left of it.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let pools = self.ledger.statistics().map_or_else(Vec::new, |it| it.pools);
        pools.iter().map(|pool| pool.reserved_bytes).fold(0, u64::saturating_add)
    }

    /// Releases the pages that no importer has open. Returns their bytes.
    ///
    /// # Errors
    /// Why nothing was released.
    pub fn release(&self) -> Result<u64, KeptReason> {
        if self.ledger.survivors() != Survivors::None {
            return Err(KeptReason::Survivors(self.ledger.survivors()));
        }
        if !self.files.iter().any(|file| file.is_writable) {
            return Err(KeptReason::ReadOnly);
        }
        let open = |file: &MappedFile| Ok((file.identity, open_mapped(file)?));
        let files: Vec<_> =
            self.files.iter().filter(|file| file.is_writable).map(open).collect::<Result<_, _>>()?;
        let kept = self.kept_ranges()?;
        let mut released = 0;
        for (identity, file) in &files {
            let system = |call| move |errno| KeptReason::System(call, errno);
            let size = umf_os::file::size(file).map_err(system("fstat"))?;
            let before = blocks(file);
            for range in kept.others(*identity, 0..size) {
                umf_os::file::punch_hole(file, range.start, range.end - range.start).map_err(|errno| {
                    match errno {
                        Errno::PERM => KeptReason::ReadOnly,
                        errno => KeptReason::System("fallocate", errno),
                    }
                })?;
            }
            released += before.saturating_sub(blocks(file));
        }
        Ok(released)
    }

    /// Prevents further opens, and returns what importers have open.
    fn kept_ranges(&self) -> Result<KeptRanges, KeptReason> {
        let system = |errno| KeptReason::System("reading the lease table", errno);
        let (table, shape) =
            self.holders.iter().find_map(|&pid| self.find_table(pid)).ok_or(KeptReason::NoLeaseTable)?;
        let identity = umf_os::file::identity(&table).map_err(system)?;
        let head = HeaderMapping::new(&table, shape).map_err(|_| KeptReason::NoLeaseTable)?;
        let collector = Collector::begin(table.as_fd(), identity, &head).map_err(system)?;
        let leased = collector.ok_or(KeptReason::Busy)?.leased_slots().map_err(system)?;
        let leased: HashSet<u32> = leased.ok_or(KeptReason::Busy)?.iter().collect();
        let contents = self.ledger.last_contents().filter(|(slot, _)| leased.contains(slot));
        Ok(KeptRanges::of(contents.map(|(_, content)| content)))
    }

    /// Returns the producer's lease table, if this process has it open.
    fn find_table(&self, pid: u32) -> Option<(OwnedFd, crate::lease::layout::TableShape)> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let tables = entries.flatten().map(|entry| entry.path()).filter(|path| {
            fs::read_link(path)
                .is_ok_and(|link| link.to_str().is_some_and(|link| link.starts_with(TABLE_PATH)))
        });
        tables.filter_map(|path| self.ledger.lease_table_at(path.to_str()?)).next()
    }
}

fn blocks(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).map_or(0, |found| found.st_blocks.cast_unsigned() * 512)
}

/// Opens a file that another process has mapped.
fn open_mapped(file: &MappedFile) -> Result<OwnedFd, KeptReason> {
    let opened = umf_os::file::open_path(&file.path).and_then(|found| {
        let is_same = umf_os::file::identity(&found)? == file.identity;
        // The process has unmapped it meanwhile, and mapped another file there.
        if is_same { umf_os::file::reopen(found.as_fd(), true) } else { Err(Errno::STALE) }
    });
    opened.map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => KeptReason::NotPermitted(errno),
        errno => KeptReason::System("opening a mapping of the memory", errno),
    })
}

/// Parses a line of `/proc/<pid>/maps`: the range of addresses, whether it is writable, and the
/// file, if that is host memory.
fn memory_of_line(line: &str) -> Option<(&str, bool, FileIdentity)> {
    let (fields, path) = line.split_at_checked(line.find('/')?)?;
    let mut fields = fields.split_ascii_whitespace();
    let range = fields.next()?;
    let (access, _, device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = device.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = rustix::fs::makedev(number(major)?, number(minor)?);
    let file = FileIdentity { device, inode: inode.parse().ok()? };
    (path == MEMORY_PATH).then_some((range, access.starts_with("rw"), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_parsed() {
        let line =
            "7f1c00000000-7f1d00000000 rw-s 00000000 00:01 1042                       /memfd:umf (deleted)";
        let file = FileIdentity { device: rustix::fs::makedev(0, 1), inode: 1042 };
        assert_eq!(memory_of_line(line), Some(("7f1c00000000-7f1d00000000", true, file)));
        let line = line.replace("rw-s", "r--s");
        assert_eq!(memory_of_line(&line), Some(("7f1c00000000-7f1d00000000", false, file)));
        for other in [
            "",
            "7f1c00000000-7f1d00000000 rw-p 00000000 00:00 0 ",
            "7f1c00000000-7f1d00000000 rw-s 00000000 00:01 1042  /memfd:umf-leases (deleted)",
            "7f1c00000000-7f1d00000000 rw-s 00000000 00:zz 1042  /memfd:umf (deleted)",
            "/memfd:umf (deleted)",
            "a b c d /memfd:umf (deleted)",
        ] {
            assert_eq!(memory_of_line(other), None, "{other}");
        }
    }
}
