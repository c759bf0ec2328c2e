//! Named shared memory: an object in `/dev/shm` that other programs open by name.
//!
//! What the name costs, compared to memory without one:
//!
//! - It cannot be sealed. Whoever may write to the object may also truncate it, and the next touch of a page
//!   that is gone is SIGBUS, in every process that maps it. So importers refuse it unless they are told to
//!   allow it ([`crate::HostImport::allow_unsealed`]).
//! - A process that is killed leaves the name behind, and with it the memory, until somebody unlinks it or
//!   the machine restarts. `umf gc` finds and removes such names, by the mark that the provider leaves on them
//!   ([`crate::CreatorMark`]).
//! - It counts against the size of `/dev/shm`, which is small in containers. A page that does not fit is
//!   SIGBUS, unless regions are reserved when they are allocated ([`crate::HostBuilder::reserve`]).
//!
//! [`CreatorMark`] is what a provider writes on such memory, so that what a killed process left can be told from
//! other programs' objects.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::FileIdentity;
use umf_sync::failpoint;

use crate::sys;

/// A name that this provider made, taken away when dropped.
#[derive(Debug)]
pub(crate) struct NamedObject {
    name: CString,
    /// Device and inode of the object.
    identity: FileIdentity,
}

/// Makes the object `name` of `size` bytes, all of it a hole; its descriptor has a number from `first` on.
pub(crate) fn create(name: &str, size: u64, first: i32) -> Result<(OwnedFd, NamedObject)> {
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
                "the name is taken, maybe by a process that was killed: choose another or unlink it"
            }
            Errno::NOENT => "there is no /dev/shm",
            Errno::NOSPC => "/dev/shm is full: mount it larger, or take away what is left there (umf gc)",
            Errno::MFILE => "raise RLIMIT_NOFILE",
            _ => "",
        },
    })?;
    failpoint!("host.name_made");
    let file = sys::move_above(file, first);
    let made = umf_os::file::identity(&file).map(|identity| NamedObject { name: name.clone(), identity });
    let made = made.map_err(|errno| {
        // Without its identity it cannot be taken away later; it was made a moment ago and is ours.
        let _ = sys::unlink_named(&name);
        Error::native("fstat", errno.raw_os_error())
    })?;
    // A file system that keeps no marks is no reason not to go on: what is left by a kill is then nobody's for certain.
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
        // Somebody may have unlinked ours and made another of that name: that one is not ours to take.
        let now = sys::open_named(&self.name).and_then(|file| umf_os::file::identity(&file));
        if now == Ok(self.identity) {
            let _ = sys::unlink_named(&self.name);
            failpoint!("host.name_taken_away");
        }
    }
}

/// Who made an object in `/dev/shm`: an extended attribute of it, where the file system keeps those (tmpfs from Linux 6.6
/// on). A process that may write the object may write the mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatorMark {
    boot: String,
    namespace: String,
    pid: u32,
    start_time: u64,
}

impl CreatorMark {
    /// The name of the attribute (`xattr(7)`).
    pub const ATTRIBUTE: &str = "user.umf.named";

    /// That of this process; `None` where `/proc` does not tell who it is.
    pub(crate) fn current() -> Option<Self> {
        let pid = std::process::id();
        Some(Self { boot: boot()?, namespace: namespace()?, pid, start_time: start_time(pid)? })
    }

    /// The mark that these bytes are; `None` if they are none of this version.
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

    /// The process id of the maker, in its pid namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the maker may still run: that it does not is certain only in its own pid namespace.
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

/// As `pid:[4026531836]`.
fn namespace() -> Option<String> {
    fs::read_link("/proc/thread-self/ns/pid").ok()?.to_str().map(str::to_owned)
}

/// Field 22 of `/proc/<pid>/stat` (`proc_pid_stat(5)`). A process that ended and was not waited for is no more.
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
    fn a_mark_tells_who_made_it() {
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
        fn any_bytes_are_a_mark_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(mark) = CreatorMark::parse(&bytes) {
                prop_assert!(CreatorMark::parse(mark.text().as_bytes()).is_some());
            }
        }
    }
}
