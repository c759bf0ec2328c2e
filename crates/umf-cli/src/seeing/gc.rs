//! `umf gc`: takes away what killed processes left, if there is anything at all.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::Args;
use rustix::io::Errno;

use super::processes::plain;
use crate::output::{self, Failure};
use crate::sys::shm;

/// Where named shared memory lies (`shm_overview(7)`).
const FOLDER: &str = "/dev/shm";

/// Shows and removes what killed processes left.
///
/// That can be nothing but named shared memory, in /dev/shm, of providers that were given a name:
/// everything else has none, and goes with the last process that has it. Removed is only what a
/// provider of umf marked as its own, what nobody has open or mapped any more (the kernel grants a
/// lease on it): its maker has ended, or become another program.
#[derive(Args)]
pub(crate) struct GcCommand {
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

impl GcCommand {
    /// Looks, and removes.
    ///
    /// # Errors
    /// Something could not be removed; standard output cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = String::new();
        let mut tally = Tally::default();
        match fs::read_dir(FOLDER) {
            Ok(entries) => {
                let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
                paths.sort();
                paths.iter().for_each(|path| tally.judge(&mut out, path, self.dry_run));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::Told(format!("{FOLDER}: {error}"))),
        }
        tally.conclude(&mut out, self.dry_run);
        output::print(&out)?;
        match tally.failed {
            0 => Ok(()),
            failed => Err(Failure::Told(format!("{failed} of them could not be removed"))),
        }
    }
}

#[derive(Default)]
struct Tally {
    removed: u64,
    bytes: u64,
    kept: u64,
    failed: u64,
    /// Objects that nobody uses and nothing is known of, because the file system keeps no marks.
    unmarked: u64,
    marks_missing: bool,
}

/// What is known of an object in `/dev/shm`.
enum Verdict {
    /// Nothing says that it is umf's.
    NotOurs,
    /// It could be, but this file system keeps no marks.
    Unmarked,
    /// It is umf's, and stays, because.
    Stays(String),
    /// It is umf's and left over: made by this process.
    Left { maker: String, bytes: u64, lease: shm::Lease },
}

impl Tally {
    fn judge(&mut self, out: &mut String, path: &Path, dry_run: bool) {
        // Writing to a String does not fail.
        let name = plain(&path.display().to_string());
        match verdict(path) {
            Verdict::NotOurs => {}
            Verdict::Unmarked => {
                self.marks_missing = true;
                self.unmarked += 1;
            }
            Verdict::Stays(why) => {
                self.kept += 1;
                let _ = writeln!(out, "{name}: stays: {why}");
            }
            Verdict::Left { maker, bytes, lease } => {
                let size = output::human(bytes);
                let made = format!("{name}: {size}, left by {maker}");
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

    fn conclude(&self, out: &mut String, dry_run: bool) {
        if self.removed == 0 && self.kept == 0 && self.failed == 0 {
            out.push_str("nothing is left of killed processes\n");
        } else {
            let done = if dry_run { "would be removed" } else { "removed" };
            let _ =
                writeln!(out, "{done}: {}, {}; stay: {}", self.removed, output::human(self.bytes), self.kept);
        }
        if self.marks_missing {
            let _ = writeln!(
                out,
                "{} objects in {FOLDER} have no marks, because this kernel keeps none there (Linux 6.6, \
                 CONFIG_TMPFS_XATTR): they may be anybody's, and stay. Look at them with ls -l {FOLDER}.",
                self.unmarked
            );
        }
        out.push_str(
            "(Looked at: named shared memory. Memory without a name, ledgers and sockets have nothing that could stay: \
             the kernel takes them with the last process that has them.)\n",
        );
    }
}

fn verdict(path: &Path) -> Verdict {
    let object = match shm::Object::open(path) {
        Ok(Some(object)) => object,
        // No regular file, or one of somebody else.
        Ok(None) | Err(_) => return Verdict::NotOurs,
    };
    let mark = match object.mark() {
        Ok(Some(mark)) => mark,
        Ok(None) => return Verdict::NotOurs,
        Err(Errno::NOTSUP) => return Verdict::Unmarked,
        Err(_) => return Verdict::NotOurs,
    };
    let Some(mark) = umf::host::CreatorMark::parse(&mark) else { return Verdict::NotOurs };
    let maker = format!("pid {}", mark.pid());
    let may_be_alive = mark.may_be_alive();
    let bytes = object.size();
    match object.lease() {
        // A maker that has neither the file nor a mapping of it will never take its name away.
        Ok(Some(lease)) if may_be_alive => {
            Verdict::Left { maker: format!("{maker}, which is another program now (exec)"), bytes, lease }
        }
        Ok(Some(lease)) => Verdict::Left { maker: format!("{maker}, which has ended"), bytes, lease },
        _ if may_be_alive => {
            Verdict::Stays(format!("{maker}, which made it, runs (or may, in another pid namespace)"))
        }
        Ok(None) => Verdict::Stays(format!("{maker} has ended, but another process has it open or mapped")),
        Err(errno) => Verdict::Stays(format!(
            "{maker} has ended, but the kernel does not tell whether another process has it open ({})",
            crate::info::kernel_files::errno_name(errno)
        )),
    }
}
