//! Sockets that processes find by name in a directory which they share: between containers, nothing
//! else may be shared.
//!
//! A [`NamedSocket`] is two files in a [`Directory`]:
//!
//! | file | content |
//! |---|---|
//! | `NAME.lock` | its write lock says that the owner of the name is alive; its text says which file this is |
//! | `NAME` | the socket, `SOCK_SEQPACKET` |
//!
//! The lock belongs to a mapping that forked children do not inherit, as that of a lease row does
//! ([`umf_os::OfdLocks`]). It ends with the process, and no pid is needed to test it. A process
//! that gets the lock of a name that it did not bind removes both files
//! ([`remove_leftovers`]).
//!
//! A socket that refuses connections does not prove that its owner has ended: a directory that is
//! seen through an overlay file system, a network file system or another kernel refuses them too.
//! Nor does a lock that is free, for the same reason. So the owner writes the device and inode of
//! the lock file into it, as the owner sees them, and other processes believe the lock only if they
//! see the same ones.
//!
//! A lock file gets its name when it has its mode, its text and its lock. A process that finds one
//! therefore never sees a file that its owner has still to prepare.
//!
//! The socket is bound under a temporary name and renamed when it listens. A process that finds the
//! name can therefore connect, unless the owner has ended. Paths beyond the 108 bytes of a socket
//! address (`unix(7)`) go through `/proc/thread-self/fd`.

mod directory;
mod error;
mod exit;
mod leftovers;
mod lock;

pub use directory::{Directory, NameState, NamedLock, NamedSocket};
pub use error::{DirectoryError, DirectoryResult};
pub use leftovers::{Leftovers, find_leftovers, remove_leftovers, remove_leftovers_before_bind};

#[cfg(test)]
mod tests;
