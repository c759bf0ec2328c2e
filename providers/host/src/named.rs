//! Named shared memory: an object in `/dev/shm` that other programs open by name.
//!
//! Disadvantages, compared to memory without a name:
//!
//! - It cannot be sealed. A process that may write to the object may also truncate it, and then the
//!   next access to a lost page raises SIGBUS in every process that maps it. So importers refuse it
//!   by default ([`crate::HostImport::allow_unsealed`]).
//! - A killed process leaves the name and its memory behind, until the name is unlinked or the
//!   machine restarts. `umf gc` finds such names by the mark that the provider leaves on them
//!   ([`crate::CreatorMark`]), and removes them.
//! - It counts towards the size of `/dev/shm`, which is small in containers. If `/dev/shm` is full,
//!   an access to a new page raises SIGBUS. So regions are populated when they are allocated, which
//!   fails with an error instead. After a purge, an access can still raise SIGBUS.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::FileIdentity;
use umf_sync::failpoint;

use crate::sys;

/// A name that this provider created. Dropping it unlinks the name.
#[derive(Debug)]
pub(crate) struct NamedObject {
    name: CString,
    /// Device and inode of the object.
    identity: FileIdentity,
}

/// Creates the object `name` of `size` bytes without pages, whose fd is at least `lowest_fd`.
pub(crate) fn create(name: &str, size: u64, lowest_fd: i32) -> Result<(OwnedFd, NamedObject)> {
    let bad = Error::InvalidArgument {
        what: "shared memory name",
        why: "must be a slash and up to 250 other characters, none of them a slash or 0",
    };
    let rest = name.strip_prefix('/').ok_or(bad)?;
    if rest.is_empty() || rest.len() > 250 || rest.contains('/') || rest == "." || rest == ".." {
        return Err(bad);
    }
    let name = CString::new(name).map_err(|_| bad)?;
    let file = sys::create_named(&name).map_err(|errno| Error::Native {
        call: "shm_open",
        native: errno.raw_os_error(),
        hint: match errno {
            Errno::EXIST => {
                "the name exists, maybe left by a killed process: choose another, or unlink it (umf gc)"
            }
            Errno::NOENT => "there is no /dev/shm: mount a tmpfs there",
            Errno::NOSPC => {
                "/dev/shm is full: mount it larger, or remove what killed processes left there (umf gc)"
            }
            Errno::MFILE => "raise RLIMIT_NOFILE",
            _ => "",
        },
    })?;
    failpoint!("host.name_made");
    let file = sys::move_above(file, lowest_fd);
    let made = umf_os::file::identity(&file).map(|identity| NamedObject { name: name.clone(), identity });
    let made = made.map_err(|errno| {
        // Without its identity, `drop` could not verify later that the name is still ours.
        let _ = sys::unlink_named(&name);
        Error::native("fstat", errno.raw_os_error())
    })?;
    // Best effort: without extended attributes, `umf gc` cannot attribute the object to its
    // creator.
    if let Some(mark) = CreatorMark::current() {
        let _ = sys::set_attribute(file.as_fd(), CreatorMark::ATTRIBUTE, mark.text().as_bytes());
    }
    let limit = sys::file_size_limit();
    if size > limit {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        return Err(Error::LimitReached { what: "file size (RLIMIT_FSIZE)", limit, size });
    }
    sys::set_size(file.as_fd(), size).map_err(|errno| Error::native("ftruncate", errno.raw_os_error()))?;
    Ok((file, made))
}

impl Drop for NamedObject {
    fn drop(&mut self) {
        // Another process may have unlinked the name and created another object under it.
        let now = sys::open_named(&self.name).and_then(|file| umf_os::file::identity(&file));
        if now == Ok(self.identity) {
            let _ = sys::unlink_named(&self.name);
            failpoint!("host.name_taken_away");
        }
    }
}

/// The creator of an object in `/dev/shm`, recorded in an extended attribute of the object. It
/// tells objects that a killed process left from those of other programs. tmpfs has extended
/// attributes since Linux 6.6. A process that may write the object may also write the mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatorMark {
    boot: String,
    namespace: String,
    pid: u32,
    start_time: u64,
}

impl CreatorMark {
    /// Name of the attribute (`xattr(7)`).
    pub const ATTRIBUTE: &str = "user.umf.named";

    /// Returns the mark of this process, or `None` without `/proc`.
    pub(crate) fn current() -> Option<Self> {
        let pid = std::process::id();
        Some(Self { boot: boot()?, namespace: namespace()?, pid, start_time: start_time(pid)? })
    }

    /// Parses a mark. Returns `None` if the bytes are not a mark of this version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
        let (version, boot, namespace, pid, start_time) =
            (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        if version != "umf1" || words.next().is_some() {
            return None;
        }
        let (pid, start_time) = (pid.parse().ok()?, start_time.parse().ok()?);
        Some(Self { boot: boot.to_owned(), namespace: namespace.to_owned(), pid, start_time })
    }

    pub(crate) fn text(&self) -> String {
        let Self { boot, namespace, pid, start_time } = self;
        format!("umf1 {boot} {namespace} {pid} {start_time}")
    }

    /// Returns the process id of the creator in its pid namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the creator may still run. For a creator in another pid namespace this is
    /// always true until the machine restarts.
    #[must_use]
    pub fn may_be_alive(&self) -> bool {
        if boot().is_some_and(|boot| boot != self.boot) {
            return false;
        }
        namespace().is_none_or(|namespace| namespace != self.namespace)
            || start_time(self.pid).is_some_and(|time| time == self.start_time)
    }
}

fn boot() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty() && !text.contains(' '))
}

/// Returns the pid namespace, as `pid:[4026531836]`.
fn namespace() -> Option<String> {
    fs::read_link("/proc/thread-self/ns/pid").ok()?.to_str().map(str::to_owned)
}

/// Returns the start time of a process, field 22 of `/proc/<pid>/stat` (`proc_pid_stat(5)`). A
/// zombie counts as exited.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mark_identifies_its_creator() {
        let mark = CreatorMark::current().unwrap();
        assert_eq!(CreatorMark::parse(mark.text().as_bytes()), Some(mark.clone()));
        assert_eq!(mark.pid(), std::process::id());
        assert!(mark.may_be_alive());
        assert!(!CreatorMark { start_time: mark.start_time + 1, ..mark.clone() }.may_be_alive());
        assert!(!CreatorMark { pid: u32::MAX, ..mark.clone() }.may_be_alive());
        assert!(
            CreatorMark { pid: u32::MAX, namespace: "pid:[1]".to_owned(), ..mark.clone() }.may_be_alive()
        );
        assert!(!CreatorMark { boot: "other".to_owned(), ..mark }.may_be_alive());
        for bad in ["", "umf1", "umf1 a b 1", "umf2 a b 1 2", "umf1 a b 1 2 3", "umf1 a b -1 2"] {
            assert_eq!(CreatorMark::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parse_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(mark) = CreatorMark::parse(&bytes) {
                prop_assert!(CreatorMark::parse(mark.text().as_bytes()).is_some());
            }
        }
    }
}
