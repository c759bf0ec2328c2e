//! Named shared memory: an object in `/dev/shm` that other programs open by name.
//!
//! What the name costs, compared to memory without one:
//!
//! - It cannot be sealed. Whoever may write to the object may also truncate it, and the next touch of a page
//!   that is gone is SIGBUS, in every process that maps it. So importers refuse it unless they are told to
//!   allow it ([`crate::HostImport::allow_unsealed`]).
//! - A process that is killed leaves the name behind, and with it the memory, until somebody unlinks it or
//!   the machine restarts. `umf gc` finds and removes such names, by the mark that the provider leaves on them
//!   ([`crate::NamedMark`]).
//! - It counts against the size of `/dev/shm`, which is small in containers. A page that does not fit is
//!   SIGBUS, unless regions are reserved when they are allocated ([`crate::HostBuilder::reserve`]).

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_sync::failpoint;

use crate::{NamedMark, sys};

/// A name that this provider made, taken away when dropped.
#[derive(Debug)]
pub(crate) struct Name {
    name: CString,
    /// Device and inode of the object.
    identity: (u64, u64),
}

/// Makes the object `name` of `size` bytes, all of it a hole; its descriptor has a number from `first` on.
pub(crate) fn create(name: &str, size: u64, first: i32) -> Result<(OwnedFd, Name)> {
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
    let file = sys::from_number(file, first);
    let made = sys::identity(file.as_fd()).map(|identity| Name { name: name.clone(), identity });
    let made = made.map_err(|errno| {
        // Without its identity it cannot be taken away later; it was made a moment ago and is ours.
        let _ = sys::unlink_named(&name);
        Error::native("fstat", errno.raw_os_error())
    })?;
    // A file system that keeps no marks is no reason not to go on: what is left by a kill is then nobody's for certain.
    if let Some(mark) = NamedMark::current() {
        let _ = sys::set_attribute(file.as_fd(), NamedMark::ATTRIBUTE, mark.text().as_bytes());
    }
    let limit = sys::file_size_limit();
    if size > limit {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        return Err(Error::LimitReached { what: "file size (RLIMIT_FSIZE)", limit, size });
    }
    sys::set_size(file.as_fd(), size).map_err(|errno| Error::native("ftruncate", errno.raw_os_error()))?;
    Ok((file, made))
}

impl Drop for Name {
    fn drop(&mut self) {
        // Somebody may have unlinked ours and made another of that name: that one is not ours to take.
        let now = sys::open_named(&self.name).and_then(|file| sys::identity(file.as_fd()));
        if now == Ok(self.identity) {
            let _ = sys::unlink_named(&self.name);
            failpoint!("host.name_taken_away");
        }
    }
}
