//! `umf gc`: removes named shared memory that killed processes left behind, and releases memory of
//! killed producers that importers keep and do not use.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::Args;
use rustix::io::Errno;

use umf::ipc::inspect::{DeadMemory, KeptReason, Search, Survivors};
use umf::ipc::rendezvous::{self, Directory};

use super::processes::plain;
use crate::output::{self, Failure};
use crate::sys::{ShmLease, ShmObject};

/// The folder of named shared memory (`shm_overview(7)`).
const FOLDER: &str = "/dev/shm";

/// Shows and removes shared memory that killed processes left behind.
///
/// Named shared memory in /dev/shm is left behind by the process that made it. An object is removed
/// if a umf provider marked it as its own and the kernel grants a lease on it, so that no process
/// has it open or mapped.
///
/// In the directory of sockets (UMF_IPC_DIR), the files of ended processes of this boot are
/// removed. The next process that uses the directory does the same.
///
/// Unnamed memory of a killed producer stays as long as an importer has a part of it open. What no
/// importer has open is released. That needs root. Importers release it themselves at their next
/// open, close or poll.
#[derive(Args)]
pub(crate) struct GcCommand {
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

impl GcCommand {
    /// Scans `/dev/shm` and the processes, and removes what is left over.
    ///
    /// # Errors
    /// An object could not be removed, or standard output cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = String::new();
        let mut tally = Tally::default();
        match fs::read_dir(FOLDER) {
            Ok(entries) => {
                let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
                paths.sort();
                paths.iter().for_each(|path| tally.collect(&mut out, path, self.dry_run));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Failure::Message(format!("cannot list {FOLDER}: {error}; mount a tmpfs there")));
            }
        }
        tally.summarize(&mut out, self.dry_run);
        if let Some(directory) = super::processes::directory() {
            sockets(&mut out, &directory, self.dry_run);
        }
        match super::processes::find() {
            Ok(search) => dead_memory(&mut out, &search, self.dry_run),
            // Writing to a String does not fail.
            Err(failure) => drop(writeln!(out, "memory of killed producers: unknown: {failure}")),
        }
        output::print(&out)?;
        match tally.failed {
            0 => Ok(()),
            failed => Err(Failure::Message(format!(
                "{failed} objects were not removed, for the reasons above; remove them as their owner or as root"
            ))),
        }
    }
}

/// Removes the sockets and locks of ended processes from the directory of sockets, and reports it.
fn sockets(out: &mut String, directory: &Directory, dry_run: bool) {
    let path = directory.path().display();
    let (found, done, stay) = if dry_run {
        (rendezvous::find_leftovers(directory), "would be removed", "would stay")
    } else {
        (rendezvous::remove_leftovers(directory), "removed", "stay")
    };
    // Writing to a String does not fail.
    let _ = match found {
        Ok(found) => {
            let mut text = format!(
                "{path}: sockets of {} ended processes {done}, {} of running processes",
                found.removed, found.alive
            );
            for (count, what) in [
                (
                    found.foreign,
                    "of ended processes STAY: of another user, or in a read-only directory (run as that user or root, \
                     where it is writable)",
                ),
                (found.read_locked, "of ended processes STAY: another process has a read lock (/proc/locks)"),
                (
                    found.unknown,
                    "STAY: their locks cannot be tested here, or another program has removed them",
                ),
                (
                    found.other_boots,
                    "of other boots or machines STAY (if no other machine uses the directory, remove them)",
                ),
            ] {
                if count > 0 {
                    let _ = write!(text, "; {count} {}", what.replace("STAY", stay));
                }
            }
            writeln!(out, "{text}")
        }
        Err(error) => writeln!(out, "{error}"),
    };
}

/// Releases what importers keep of killed producers and do not use, and reports it.
fn dead_memory(out: &mut String, search: &Search, dry_run: bool) {
    for memory in search.dead_memory() {
        // Writing to a String does not fail.
        let _ = write!(out, "{}: ", describe(&memory));
        let _ = match (dry_run, memory.survivors) {
            (true, Survivors::None) => writeln!(out, "what no importer has open would be released"),
            _ if dry_run => writeln!(out, "would stay: {}", KeptReason::Survivors(memory.survivors)),
            _ => match memory.release() {
                Ok(bytes) => writeln!(out, "released {}, the rest is open", output::format_bytes(bytes)),
                Err(reason) => writeln!(out, "stays: {reason}"),
            },
        };
    }
}

/// Returns the producer, the bytes and the holders of a dead producer's memory.
pub(crate) fn describe(memory: &DeadMemory) -> String {
    let DeadMemory { producer, name, holders, .. } = memory;
    let bytes = match memory.bytes() {
        Some(bytes) => output::format_bytes(bytes),
        None => format!("up to {}", output::format_bytes(memory.reserved_bytes())),
    };
    let holders: Vec<_> = holders.iter().map(|pid| format!("pid {pid}")).collect();
    let name = if name.is_empty() { String::new() } else { format!(" ({})", plain(name)) };
    format!("{bytes} of pid {}{name}, which has ended, mapped by {}", producer.pid, holders.join(", "))
}

#[derive(Default)]
struct Tally {
    removed: u64,
    bytes: u64,
    kept: u64,
    failed: u64,
    /// Unused objects of unknown origin: the file system does not store the mark.
    unmarked: u64,
    marks_missing: bool,
}

/// The decision on an object in `/dev/shm`.
enum Verdict {
    /// Without a mark of umf. Ignored.
    Foreign,
    /// On a file system that does not store marks, so the object may be umf's. Kept.
    Unmarked,
    /// Marked by umf, and kept for this reason.
    Kept(String),
    /// Marked by umf and unused. `creator` describes the process that created it.
    Leftover { creator: String, bytes: u64, lease: ShmLease },
}

impl Tally {
    fn collect(&mut self, out: &mut String, path: &Path, dry_run: bool) {
        // Writing to a String does not fail.
        let name = plain(&path.display().to_string());
        match verdict(path) {
            Verdict::Foreign => {}
            Verdict::Unmarked => {
                self.marks_missing = true;
                self.unmarked += 1;
            }
            Verdict::Kept(why) => {
                self.kept += 1;
                let _ = writeln!(out, "{name}: stays: {why}");
            }
            Verdict::Leftover { creator, bytes, lease } => {
                let size = output::format_bytes(bytes);
                let made = format!("{name}: {size}, left by {creator}");
                if dry_run {
                    let _ = writeln!(out, "{made}: would be removed");
                } else if let Err(errno) = lease.remove(path) {
                    self.failed += 1;
                    let _ = writeln!(out, "{made}: not removed: {errno}");
                    return;
                } else {
                    let _ = writeln!(out, "{made}: removed");
                }
                self.removed += 1;
                self.bytes = self.bytes.saturating_add(bytes);
            }
        }
    }

    fn summarize(&self, out: &mut String, dry_run: bool) {
        if self.removed == 0 && self.kept == 0 && self.failed == 0 {
            out.push_str("killed processes left nothing behind\n");
        } else {
            let done = if dry_run { "would be removed" } else { "removed" };
            let _ = writeln!(
                out,
                "{done}: {}, {}; stay: {}",
                self.removed,
                output::format_bytes(self.bytes),
                self.kept
            );
        }
        if self.marks_missing {
            let _ = writeln!(
                out,
                "{} objects in {FOLDER} have no marks, because this kernel stores none there (Linux 6.6, \
                 CONFIG_TMPFS_XATTR): their owner is unknown, so they stay. List them with ls -l {FOLDER}.",
                self.unmarked
            );
        }
        out.push_str(
            "(Checked: named shared memory, and memory of killed producers. The kernel frees unnamed memory, ledgers and \
             sockets with the last process that uses them.)\n",
        );
    }
}

fn verdict(path: &Path) -> Verdict {
    let object = match ShmObject::open(path) {
        Ok(Some(object)) => object,
        // Not a regular file, or a file of another user.
        Ok(None) | Err(_) => return Verdict::Foreign,
    };
    let mark = match object.mark() {
        Ok(Some(mark)) => mark,
        Ok(None) => return Verdict::Foreign,
        Err(Errno::NOTSUP) => return Verdict::Unmarked,
        Err(_) => return Verdict::Foreign,
    };
    let Some(mark) = umf::host::CreatorMark::parse(&mark) else { return Verdict::Foreign };
    let creator = format!("pid {}", mark.pid());
    let may_be_alive = mark.may_be_alive();
    let bytes = object.size();
    match object.lease() {
        // The creator neither maps the object nor has it open, so it will not unlink the name.
        Ok(Some(lease)) if may_be_alive => Verdict::Leftover {
            creator: format!("{creator}, which is another program now (exec)"),
            bytes,
            lease,
        },
        Ok(Some(lease)) => Verdict::Leftover { creator: format!("{creator}, which has ended"), bytes, lease },
        _ if may_be_alive => {
            Verdict::Kept(format!("{creator}, which made it, runs (or may, in another pid namespace)"))
        }
        Ok(None) => Verdict::Kept(format!("{creator} has ended, but another process has it open or mapped")),
        Err(errno) => Verdict::Kept(format!(
            "{creator} has ended, but the kernel does not tell whether another process has it open ({})",
            crate::info::procfs::errno_name(errno)
        )),
    }
}
