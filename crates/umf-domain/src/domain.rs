//! [`Domain`]: the public interface of a domain.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use umf_ipc::Allow;

use crate::name::DomainName;
use crate::object::Object;
use crate::participant::Participant;
use crate::table::{ListedObject, MAX_SLOTS};
use crate::{ObjectId, Result, join};

/// The settings of [`Domain::join`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainSettings {
    /// The longest time that a call waits for other processes. Default: 2 s.
    pub timeout: Duration,
    /// The most objects of the domain. The process that founds the domain decides; later ones are
    /// ignored. Default and maximum: 65,536.
    pub max_objects: u32,
    /// The directory in which the processes of the domain find each other, for processes without a
    /// common network namespace. All of them set it, each to its own path of the same directory.
    /// Default: none. Then the sockets are abstract.
    pub directory: Option<PathBuf>,
    /// Which processes may be participants. Other rules than [`Allow::SameUser`] need a directory;
    /// by [`Allow::Handle`] the domain's name is the secret. Default: [`Allow::SameUser`].
    pub allow: Allow,
}

impl Default for DomainSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            max_objects: MAX_SLOTS,
            directory: None,
            allow: Allow::SameUser,
        }
    }
}

/// A named set of regions that belongs to no single process.
///
/// A domain begins when its first process joins, and ends when its last one leaves or dies. Nothing
/// is left then. A domain is identified by name, user, and network namespace or
/// [`DomainSettings::directory`].
///
/// A process joins a domain once; joining again returns the same participant. It leaves when its
/// last [`Domain`] and [`Object`] are dropped. Until then a thread serves file descriptors to other
/// processes. All types can be used by any thread.
///
/// ```
/// use umf_domain::{Domain, DomainSettings};
///
/// # fn main() -> umf_domain::Result<()> {
/// const WEIGHTS: u32 = 1;
/// # let name = format!("doc-{}", std::process::id());
/// # let name = &name;
/// let domain = Domain::join(name, DomainSettings::default())?;
/// let object = domain.create(1 << 20, WEIGHTS)?;
/// println!("{}", object.id());            // 0x43a1c0be7d210000: send it to other processes
///
/// // In another process of this user. (Here in the same one, where it changes nothing.)
/// let same = domain.register(object.id(), WEIGHTS)?;
/// same.view()?.set(0, 7_u64)?;
/// # assert_eq!(object.view::<u64>()?.get(0), Some(7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Domain {
    participant: Arc<Participant>,
}

/// A description of an object, from [`Domain::objects`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// The id by which processes register.
    pub id: ObjectId,
    /// The kind that its creator chose.
    pub kind: u32,
    /// The size in bytes.
    pub size: u64,
    /// The number of registered processes.
    pub registrants: u32,
}

impl Domain {
    /// Joins the domain with this name. If it has no process, the call founds it.
    ///
    /// A name has 1 to 64 letters, digits and `._:/+=@-`. If this process has joined before, the
    /// call returns the same participant, with the settings of the first call.
    ///
    /// # Errors
    /// - [`crate::Error::BadName`].
    /// - [`crate::Error::OtherUser`]: a process of another user has bound the domain's socket name.
    /// - [`crate::Error::TimedOut`]: all participants are stopped.
    /// - [`crate::Error::ArbiterHeld`]: a process was stopped while it held the arbiter.
    /// - [`crate::Error::Full`]: the domain has 1,024 processes.
    /// - [`crate::Error::Directory`], [`crate::Error::NotPermitted`].
    #[expect(clippy::needless_pass_by_value, reason = "callers write a literal or a default")]
    pub fn join(name: &str, settings: DomainSettings) -> Result<Self> {
        let name = DomainName::new(name, &settings)?;
        Ok(Self { participant: join::join(name, &settings)? })
    }

    /// Returns the name of the domain.
    #[must_use]
    pub fn name(&self) -> &str {
        self.participant.name()
    }

    /// Creates a zeroed region of `size` bytes, rounded up to pages, and registers this process.
    /// `kind` has a meaning for the application only. Processes that register pass the same kind.
    ///
    /// The kernel allocates pages at first use. Each registered process has one fd and one mapping
    /// for the region.
    ///
    /// # Errors
    /// [`crate::Error::BadSize`]; [`crate::Error::Full`]; [`crate::Error::System`] if fds, mappings
    /// or memory have run out; [`crate::Error::Forked`], [`crate::Error::ArbiterHeld`],
    /// [`crate::Error::Expelled`].
    pub fn create(&self, size: usize, kind: u32) -> Result<Object> {
        self.participant.create(size, kind)
    }

    /// Returns the object of this kind with the lowest slot that has a living registrant, or
    /// creates one.
    ///
    /// Processes that call it at the same time get the same object, also when one of them dies
    /// meanwhile. An object that exists keeps its size: compare [`Object::len`]. This process is
    /// registered as by [`Domain::register`] or [`Domain::create`].
    ///
    /// # Errors
    /// Those of [`Domain::create`], and [`crate::Error::TimedOut`] if all registrants are stopped;
    /// [`crate::Error::Misbehaved`].
    pub fn find_or_create(&self, size: usize, kind: u32) -> Result<Object> {
        self.participant.find_or_create(size, kind)
    }

    /// Registers this process for an object, and maps it. If it is registered already, nothing
    /// changes.
    ///
    /// The file descriptor comes from any registered process. The creator may have ended.
    ///
    /// # Errors
    /// - [`crate::Error::WrongDomain`]: the id belongs to another domain. An id has 12 bits of its
    ///   domain; if they match by chance, the error is `NoSuchObject`.
    /// - [`crate::Error::NoSuchObject`]: the object does not exist, or not any more.
    /// - [`crate::Error::WrongKind`].
    /// - [`crate::Error::TimedOut`]: all registrants are stopped.
    /// - [`crate::Error::System`], [`crate::Error::Misbehaved`], [`crate::Error::Forked`],
    ///   [`crate::Error::ArbiterHeld`], [`crate::Error::Expelled`].
    pub fn register(&self, id: ObjectId, kind: u32) -> Result<Object> {
        self.participant.register(id, kind)
    }

    /// Ends the registration of this process, as [`Object::unregister`] does.
    ///
    /// # Errors
    /// [`crate::Error::WrongDomain`], [`crate::Error::NoSuchObject`],
    /// [`crate::Error::NotRegistered`], [`crate::Error::Forked`], [`crate::Error::ArbiterHeld`],
    /// [`crate::Error::Expelled`].
    pub fn unregister(&self, id: ObjectId) -> Result<()> {
        self.participant.unregister(id, None)
    }

    /// Returns all objects with a living registrant, ordered by slot. It probes each process of the
    /// domain, so it is meant for tools.
    ///
    /// # Errors
    /// [`crate::Error::Forked`], [`crate::Error::ArbiterHeld`], [`crate::Error::Expelled`],
    /// [`crate::Error::System`].
    pub fn objects(&self) -> Result<Vec<ObjectInfo>> {
        let info = |listed: ListedObject| ObjectInfo {
            id: listed.id,
            kind: listed.entry.kind,
            size: listed.entry.file.size,
            registrants: listed.registrants,
        };
        Ok(self.participant.objects()?.into_iter().map(info).collect())
    }
}
