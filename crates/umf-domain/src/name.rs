//! [`DomainName`]: the name of a domain, and what stands under it: the sockets of the participants,
//! and the arbiter.
//!
//! The names are abstract sockets ([`crate::socket`]) or files in a directory ([`crate::place`]).

use std::os::fd::OwnedFd;
use std::time::Duration;

use umf_ipc::Allow;
use umf_ipc::fd_socket::{Deadline, Key, Listeners, ServerRule};
use umf_ipc::rendezvous::NamedLock;
use umf_sync::failpoint;

use crate::id::DomainTag;
use crate::place::Place;
use crate::request::{PROTOCOL, Sender};
use crate::sys::{self, CloseOnFork};
use crate::table::MAX_PARTICIPANTS;
use crate::{DomainSettings, Error, Result, socket};

/// The longest name of a domain. With the rest of an abstract socket's name it fits 107 bytes.
const MAX_LENGTH: usize = 64;

/// The name of a domain, and where its processes find each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DomainName {
    text: String,
    uid: u32,
    /// `None`: abstract sockets.
    place: Option<Place>,
}

/// The result of a connection to the name of a participant.
#[derive(Debug)]
pub(crate) enum Probe {
    /// No process has the name, or the process that had it has ended.
    Free,
    /// A process that is not permitted has the name. The pid is 0 if it is unknown.
    OtherUser { uid: u32, pid: i32 },
    /// A process has the name, and cannot be connected now.
    Busy,
    /// A process of this user, or of root, listens. In a directory with [`Allow::Handle`]: a
    /// process that has still to prove the key.
    Connected(OwnedFd),
}

impl Probe {
    /// Returns whether the name belongs to a living participant.
    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self, Self::Busy | Self::Connected(_))
    }
}

impl DomainName {
    pub(crate) fn new(text: &str, settings: &DomainSettings) -> Result<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/+=@-".contains(&byte);
        let why = if text.is_empty() {
            "it is empty"
        } else if text.len() > MAX_LENGTH {
            "it has more than 64 characters"
        } else if !text.bytes().all(is_allowed) {
            "it has other characters"
        } else {
            let mut name = Self { text: text.to_owned(), uid: sys::effective_uid(), place: None };
            if let Some(path) = &settings.directory {
                let key = Key::of_name("domain", &name.identity(settings.allow));
                name.place = Some(Place::new(path, settings.allow, key));
            }
            return Ok(name);
        };
        Err(Error::BadName { name: text.chars().take(MAX_LENGTH).collect(), why })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the name may stand in logs and in names of memory files: it is no secret.
    pub(crate) fn is_public(&self) -> bool {
        self.allow() != Allow::Handle
    }

    /// Returns the name, or a hash of it if it is a secret.
    pub(crate) fn label(&self) -> String {
        match self.key().filter(|_| !self.is_public()) {
            None => self.text.clone(),
            Some(key) => key.public_name().to_string(),
        }
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    fn allow(&self) -> Allow {
        self.place.as_ref().map_or(Allow::SameUser, |place| place.allow)
    }

    /// Returns what participants have in common. Where processes of several users are permitted,
    /// that is the name alone.
    fn identity(&self, allow: Allow) -> String {
        match allow {
            Allow::SameUser => format!("{} {}", self.uid, self.text),
            Allow::Group | Allow::Handle => self.text.clone(),
        }
    }

    pub(crate) fn tag(&self) -> DomainTag {
        DomainTag::of(self.identity(self.allow()).as_bytes())
    }

    /// Returns the key that participants prove to each other; `None` with abstract sockets.
    pub(crate) fn key(&self) -> Option<Key> {
        self.place.as_ref().map(|place| Key::of_name("domain", &self.identity(place.allow)))
    }

    /// Returns which clients a participant answers.
    pub(crate) fn rule(&self) -> ServerRule {
        ServerRule { nonce: PROTOCOL, allow: self.allow(), key: self.key() }
    }

    /// Returns the abstract name that is the lock of the table.
    fn arbiter_socket(&self) -> Vec<u8> {
        format!("umf-domain-{}-arbiter-{}", self.uid, self.text).into_bytes()
    }

    /// Returns the abstract name on which the participant with this id listens.
    fn participant_socket(&self, id: u16) -> Vec<u8> {
        format!("umf-domain-{}-{id}-{}", self.uid, self.text).into_bytes()
    }

    /// Connects to the participant with this id. `spare` is a socket for probes of abstract names
    /// ([`socket::probe_with`]).
    pub(crate) fn probe(&self, id: u16, spare: &mut Option<OwnedFd>) -> Result<Probe> {
        match &self.place {
            None => socket::probe_with(spare, &self.participant_socket(id))
                .map_err(Error::system("connect to a participant")),
            Some(place) => place.probe(&self.text, id),
        }
    }

    /// Returns whether the participant with this id is alive.
    pub(crate) fn is_alive(&self, id: u16) -> Result<bool> {
        match &self.place {
            None => Ok(self.probe(id, &mut None)?.is_alive()),
            Some(place) => place.is_alive(id),
        }
    }

    /// Returns whether a participant that sent a file has not ended since.
    pub(crate) fn is_sender_alive(&self, sender: &Sender) -> Result<bool> {
        Ok(socket::is_peer_alive(&sender.connection)
            && self.place.as_ref().map_or(Ok(true), |place| place.is_alive(sender.id))?)
    }

    /// Returns the lowest id of a living participant. `foreign` are ids that no participant has.
    ///
    /// A list of all abstract sockets from the kernel is not atomic and can miss one. A second
    /// table would then be made for a living domain, which would split it. So each id is probed. A
    /// list of a directory has all files that exist all the time (`readdir(3)`).
    pub(crate) fn first_alive(&self, foreign: &[u16]) -> Result<Option<u16>> {
        let ids = match &self.place {
            None => (0..MAX_PARTICIPANTS).collect(),
            Some(place) => place.ids()?,
        };
        let mut spare = None;
        for id in ids.into_iter().filter(|id| !foreign.contains(id)) {
            if self.probe(id, &mut spare)?.is_alive() {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Binds the lowest free id. The caller holds the arbiter.
    pub(crate) fn bind(&self) -> Result<Option<(u16, Listeners)>> {
        let ids = 0..MAX_PARTICIPANTS;
        match &self.place {
            None => {
                let bound = socket::bind_first(ids.map(|id| (id, self.participant_socket(id))))
                    .map_err(Error::system("bind of a participant's name"))?;
                Ok(bound.map(|(id, listener)| (id, Listeners::default().with_abstract(listener))))
            }
            Some(place) => place.bind(ids),
        }
    }
}

/// A guard that holds a domain's arbiter from [`lock_arbiter`] until it is dropped.
#[derive(Debug)]
pub(crate) struct ArbiterGuard {
    held: Option<HeldName>,
}

/// The name whose owner holds the arbiter.
#[derive(Debug)]
enum HeldName {
    Abstract(#[expect(dead_code, reason = "held until it is dropped")] CloseOnFork),
    InDirectory(#[expect(dead_code, reason = "held until it is dropped")] NamedLock),
}

impl Drop for ArbiterGuard {
    fn drop(&mut self) {
        drop(self.held.take());
        failpoint!("domain.turn_given_back");
    }
}

const MIN_BACKOFF: Duration = Duration::from_micros(20);
const MAX_BACKOFF: Duration = Duration::from_millis(1);
/// Failed attempts between two checks of the holder. A participant holds the arbiter for
/// microseconds, and each check leaves a connection in the holder's backlog.
const ATTEMPTS_PER_CHECK: u32 = 16;

/// Locks the arbiter, or fails at `deadline`. `timeout` is that of the whole call, for errors.
pub(crate) fn lock_arbiter(name: &DomainName, deadline: Deadline, timeout: Duration) -> Result<ArbiterGuard> {
    let address = name.arbiter_socket();
    let mut backoff = MIN_BACKOFF;
    let mut holder = 0;
    for attempt in 1_u32.. {
        let held = match &name.place {
            None => socket::bind(&address)
                .map_err(Error::system("bind of the arbiter's name"))?
                .map(HeldName::Abstract),
            Some(place) => place.lock_arbiter(&name.text)?.map(HeldName::InDirectory),
        };
        if held.is_some() {
            return Ok(ArbiterGuard { held });
        }
        let is_over = deadline.left().is_err();
        if name.place.is_none() && (is_over || attempt.is_multiple_of(ATTEMPTS_PER_CHECK)) {
            holder = socket::check_holder(&name.text, &address)?.unwrap_or(holder);
        }
        if is_over {
            break;
        }
        std::thread::sleep(backoff);
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
    let socket = match &name.place {
        None => String::from_utf8_lossy(&address).into_owned(),
        Some(place) => place.arbiter_path(),
    };
    Err(Error::ArbiterHeld {
        domain: name.text.clone(),
        socket,
        pid: holder,
        milliseconds: milliseconds(timeout),
    })
}

pub(crate) fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str, uid: u32) -> DomainName {
        DomainName { uid, ..DomainName::new(text, &DomainSettings::default()).unwrap() }
    }

    #[test]
    fn name_has_allowed_characters_only() {
        let longest = "x".repeat(64);
        for good in ["a", "job-42/rank:7", &longest] {
            let name = named(good, u32::MAX);
            for socket in [name.arbiter_socket(), name.participant_socket(u16::MAX)] {
                assert!(socket.len() <= 107, "{}", socket.len());
            }
        }
        for bad in ["", "a b", "a\0", "ä", "a\n", &"x".repeat(65)] {
            let refused = DomainName::new(bad, &DomainSettings::default());
            assert!(matches!(refused, Err(Error::BadName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn socket_names_of_two_domains_differ() {
        // Domain names that contain the separators and the word of the arbiter's name.
        let names = ["1-a", "a", "arbiter-a", "0-1-a"].map(|text| named(text, 1));
        let mut sockets: Vec<_> =
            names.iter().flat_map(|name| [name.arbiter_socket(), name.participant_socket(1)]).collect();
        sockets.sort();
        sockets.dedup();
        assert_eq!(sockets.len(), 8);
    }

    #[test]
    fn names_in_directory_reveal_nothing_and_depend_on_the_rule() {
        let longest = "x/".repeat(32);
        let in_directory = |text: &str, allow| {
            let settings =
                DomainSettings { directory: Some("/d".into()), allow, ..DomainSettings::default() };
            DomainName::new(text, &settings).unwrap()
        };
        let mut keys = Vec::new();
        for text in ["secret", &longest] {
            for allow in Allow::ALL {
                let name = in_directory(text, allow);
                let file = name.place().unwrap().file(&1023);
                assert!(file.len() < 100 && !file.contains(text) && !file.contains('/'), "{file}");
                assert!(file.starts_with("umf-"), "{file}");
                assert_eq!(name.label() == text, allow != Allow::Handle);
                keys.push((name.key().unwrap().public_name(), name.tag().bits()));
            }
        }
        // The user is a part of the name only where other users are not permitted.
        assert!(keys[0] != keys[1] && keys[1] == keys[2] && keys[2] != keys[4]);
        assert!(named("secret", 1).key().is_none());
    }
}
