//! [`Place`]: the names of a domain in a directory ([`umf_ipc::rendezvous`]).
//!
//! | file | content |
//! |---|---|
//! | `umf-<boot>-domain-<hash>-<id>`, with `.lock` | socket and lock of a participant |
//! | `umf-<boot>-domain-<hash>-arbiter.lock` | the arbiter: the process that has its lock may change the table |
//!
//! The hash is of the key that participants prove to each other, and the key is one of the domain's
//! name. A participant is alive while the lock of its name is held. Nothing follows from a refused
//! connection, and no pid is used.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use umf_ipc::Allow;
use umf_ipc::fd_socket::{Key, Listeners, directory_prefix};
use umf_ipc::rendezvous::{Directory, NameState, NamedLock};
use umf_os::socket::{PeerTrust, peer, peer_trust_by};

use crate::name::Probe;
use crate::table::MAX_PARTICIPANTS;
use crate::{Error, Result, sys};

/// How long a probe waits for a place in the backlog of a participant. The kernel has no connect
/// that does not block and reports the place later.
const PROBE_PATIENCE: Duration = Duration::from_millis(1);
/// Connections that wait for a participant.
const BACKLOG: i32 = 128;
/// The word in the arbiter's name.
const ARBITER: &str = "arbiter";

/// The directory of a domain, and the beginning of its names there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub directory: Directory,
    pub allow: Allow,
    prefix: String,
}

impl Place {
    pub(crate) fn new(path: &Path, allow: Allow, key: Key) -> Self {
        let prefix = format!("{}domain-{}-", directory_prefix(), key.public_name());
        Self { directory: Directory::new(path), allow, prefix }
    }

    /// Returns the name of the arbiter's file, or of a participant's.
    pub(crate) fn file(&self, what: &impl core::fmt::Display) -> String {
        format!("{}{what}", self.prefix)
    }

    pub(crate) fn arbiter_path(&self) -> String {
        self.path_of(&self.file(&ARBITER))
    }

    fn path_of(&self, file: &str) -> String {
        self.directory.path().join(file).display().to_string()
    }

    /// Returns the ids whose names may have files, in ascending order: all if this process may not
    /// list the directory.
    pub(crate) fn ids(&self) -> Result<Vec<u16>> {
        let names = match self.directory.names(&self.prefix) {
            Ok(names) => names,
            Err(error) if error.errno() == Some(Errno::ACCESS) => return Ok((0..MAX_PARTICIPANTS).collect()),
            Err(error) => return Err(error.into()),
        };
        let mut ids: Vec<u16> =
            names.iter().filter_map(|name| name.strip_prefix(&self.prefix)?.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns whether the participant with this id is alive. If that cannot be known, it counts as
    /// alive, because its objects would be lost otherwise.
    pub(crate) fn is_alive(&self, id: u16) -> Result<bool> {
        Ok(match self.directory.state(&self.file(&id))? {
            NameState::Absent | NameState::Dead => false,
            NameState::Alive => true,
            NameState::Unknown => !self.is_squatter(&self.file(&id)),
        })
    }

    /// Returns whether the name belongs to a process that can be no participant: by this rule, no
    /// participant refuses that this process reads its lock.
    fn is_squatter(&self, file: &str) -> bool {
        self.allow != Allow::Group && self.foreign_owner(file).is_some()
    }

    /// Returns the user of a name's lock file, unless that is this process's user or root.
    fn foreign_owner(&self, file: &str) -> Option<u32> {
        self.directory.owner(file).ok().filter(|&uid| uid != 0 && uid != sys::effective_uid())
    }

    /// Connects to the participant with this id.
    pub(crate) fn probe(&self, domain: &str, id: u16) -> Result<Probe> {
        if !self.is_alive(id)? {
            return Ok(Probe::Free);
        }
        let file = self.file(&id);
        let socket = match self.directory.connect(&file, Some(PROBE_PATIENCE)) {
            Ok(socket) => socket,
            Err(error) => {
                return match (error.errno(), self.foreign_owner(&file)) {
                    // It is being bound or removed, or its backlog is full.
                    (Some(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR), _) => {
                        Ok(Probe::Busy)
                    }
                    (Some(Errno::ACCESS | Errno::LOOP | Errno::NOTSOCK), Some(uid)) => {
                        self.not_permitted(domain, uid, 0)
                    }
                    _ => Err(error.into()),
                };
            }
        };
        let failed = Error::system("getsockopt");
        let is_trusted = self.allow == Allow::Handle
            || peer_trust_by(self.allow, socket.as_fd()).map_err(&failed)? == PeerTrust::Trusted;
        if is_trusted {
            return Ok(Probe::Connected(socket));
        }
        let (uid, pid) = peer(socket.as_fd()).map_err(failed)?;
        self.not_permitted(domain, uid, pid)
    }

    /// Returns the result for a name whose owner the rule does not permit. With [`Allow::Group`]
    /// that can be a participant, which must not be ignored: there would be two domains with one
    /// name.
    fn not_permitted(&self, domain: &str, uid: u32, pid: i32) -> Result<Probe> {
        if self.allow == Allow::Group {
            Err(self.error(domain, self.allow))
        } else {
            Ok(Probe::OtherUser { uid, pid })
        }
    }

    /// Returns the error of a rule that refuses a process.
    pub(crate) fn error(&self, domain: &str, rule: Allow) -> Error {
        let path = self.directory.path().to_owned();
        Error::NotPermitted { domain: domain.to_owned(), rule, path }
    }

    /// Binds the lowest free id. Ids whose files belong to other users count as taken.
    pub(crate) fn bind(&self, ids: impl IntoIterator<Item = u16>) -> Result<Option<(u16, Listeners)>> {
        for id in ids {
            let file = self.file(&id);
            match self.directory.try_bind(&file, self.allow.socket_mode(), BACKLOG) {
                Ok(None) => {}
                Ok(Some(socket)) => return Ok(Some((id, Listeners::default().with_named(socket)))),
                // A failed bind leaves no file, so that this one is of another process.
                Err(_) if self.directory.owner(&file).is_ok() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Acquires the arbiter. Returns `None` if another process has it.
    pub(crate) fn lock_arbiter(&self, domain: &str) -> Result<Option<NamedLock>> {
        let file = self.file(&ARBITER);
        self.directory.try_lock(&file, self.allow.socket_mode()).map_err(|error| {
            match (error.errno(), self.foreign_owner(&file)) {
                (Some(Errno::ACCESS | Errno::PERM), Some(_)) if self.allow == Allow::Group => {
                    self.error(domain, self.allow)
                }
                (Some(Errno::ACCESS | Errno::PERM), Some(uid)) => Error::OtherUser {
                    domain: domain.to_owned(),
                    socket: self.path_of(&file),
                    uid,
                    pid: 0,
                    own_uid: sys::effective_uid(),
                },
                _ => error.into(),
            }
        })
    }
}
