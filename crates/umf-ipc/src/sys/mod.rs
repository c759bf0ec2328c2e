//! System calls of this crate.

mod files;
mod memory;
mod peers;
mod processes;
mod ranges;

pub use files::TMPFS_MAGIC;
pub(crate) use files::{FileIdentity, filesystem, identity, is_regular, open_path, read_at, reopen, size};
pub(crate) use memory::{SharedMapping, add_seals, memfd_device, punch, seals};
pub use memory::{file_size_limit, memfd, reserve};
pub(crate) use peers::peer_pidfd;
pub use peers::{Peer, peer, peer_of, so_peerpidfd};
pub(crate) use processes::{
    boot_time, fd_limit, is_dumpable, pid, pidfd_getfd, pidfd_open, sees_itself_in_proc, set_ptracer,
};
pub use processes::{close_inherited, effective_uid, has_ended, random};
pub(crate) use ranges::{AddressRange, populate, wipe_on_fork};

pub(crate) type Result<T> = core::result::Result<T, rustix::io::Errno>;
