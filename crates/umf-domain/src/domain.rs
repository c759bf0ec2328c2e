//! [`Domain`]: what an application has of a domain.

use std::sync::Arc;
use std::time::Duration;

use crate::name::Name;
use crate::object::Object;
use crate::participant::Participant;
use crate::table::{Listed, MAX_SLOTS};
use crate::{Number, Result, joined, sys};

/// How to join.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainSettings {
    /// How long one call may wait for other processes, all in all. 2 s.
    pub timeout: Duration,
    /// How many objects the domain can have: said by the process that begins it, ignored of those who come later. 65,536,
    /// which is the most.
    pub max_objects: u32,
}

impl Default for DomainSettings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(2), max_objects: MAX_SLOTS }
    }
}

/// A named set of regions that belongs to no single process.
///
/// It begins when the first process joins and ends with the last one, however that goes; nothing is left of it then.
/// Processes of one user and one network namespace meet in the domain of a name.
///
/// A process joins a domain once: joining again gives the same. It leaves when the last of [`Domain`] and [`Object`]
/// is dropped. While it is in, a thread serves memory to others. All of it can be used in any thread.
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
/// println!("{}", object.number());                    // 0x43a1c0be7d210000: send it to anybody
///
/// // In any other process of this user (here, in this one: registering again changes nothing):
/// let same = domain.register(object.number(), WEIGHTS)?;
/// same.view()?.set(0, 7_u64)?;
/// # assert_eq!(object.view::<u64>()?.get(0), Some(7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Domain {
    participant: Arc<Participant>,
}

/// An object of a domain, as [`Domain::objects`] saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// By which processes register.
    pub number: Number,
    /// What its creator said that it is.
    pub kind: u32,
    /// In bytes.
    pub size: u64,
    /// How many processes are registered.
    pub registrants: u32,
}

impl Domain {
    /// Joins the domain of this name, which begins if nobody is in it.
    ///
    /// A name has 1 to 64 letters, digits and `._:/+=@-`. Where this process has joined already, it is the same, and the
    /// settings are those of the first time.
    ///
    /// # Errors
    /// [`crate::Error::BadName`]; [`crate::Error::OtherUser`] if somebody else's process sits on the domain's name;
    /// [`crate::Error::TimedOut`] if all that are in it are stopped; [`crate::Error::Held`] if one was stopped in the few
    /// microseconds in which nobody else may join; [`crate::Error::Full`] with 1,024 processes.
    #[expect(clippy::needless_pass_by_value, reason = "written down where it is called")]
    pub fn join(name: &str, settings: DomainSettings) -> Result<Self> {
        let name = Name::new(name, sys::effective_uid())?;
        Ok(Self { participant: joined::join(name, &settings)? })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.participant.name()
    }

    /// Makes a region of `size` bytes, rounded up to pages, zeroed; this process is registered by that. `kind` is whatever
    /// the application wants it to be: who registers has to name the same.
    ///
    /// The memory comes from the system as it is touched. It holds one fd and one mapping in each registered process.
    ///
    /// # Errors
    /// [`crate::Error::BadSize`]; [`crate::Error::Full`]; [`crate::Error::System`] where fds, mappings or memory have
    /// run out; [`crate::Error::Forked`], [`crate::Error::Held`], [`crate::Error::Expelled`].
    pub fn create(&self, size: usize, kind: u32) -> Result<Object> {
        self.participant.create(size, kind)
    }

    /// Returns the object of this kind with the lowest slot that has a living registrant, or creates one.
    ///
    /// Processes that call it at the same time get the same object, also when one of them dies meanwhile. An object
    /// that exists keeps its size: compare [`Object::len`]. This process is registered as by [`Domain::register`] or
    /// [`Domain::create`].
    ///
    /// # Errors
    /// Those of [`Domain::create`], and [`crate::Error::TimedOut`] if all registrants are stopped;
    /// [`crate::Error::Misbehaved`].
    pub fn find_or_create(&self, size: usize, kind: u32) -> Result<Object> {
        self.participant.find_or_create(size, kind)
    }

    /// Registers this process for an object, and maps it. If it is registered already, nothing changes.
    ///
    /// The memory comes from any process that is registered, whether its creator is still there or not.
    ///
    /// # Errors
    /// [`crate::Error::WrongDomain`], as a rule, for a number of another domain (a number has 12 bits of that; one that
    /// passes fails as the next); [`crate::Error::NoSuchNumber`] if no such object is or none is any more;
    /// [`crate::Error::WrongKind`]; [`crate::Error::TimedOut`] if all that are registered are stopped;
    /// [`crate::Error::System`], [`crate::Error::Misbehaved`], [`crate::Error::Forked`], [`crate::Error::Held`],
    /// [`crate::Error::Expelled`].
    pub fn register(&self, number: Number, kind: u32) -> Result<Object> {
        self.participant.register(number, kind)
    }

    /// Ends the registration of this process, as [`Object::unregister`] does.
    ///
    /// # Errors
    /// [`crate::Error::WrongDomain`], [`crate::Error::NoSuchNumber`], [`crate::Error::NotRegistered`],
    /// [`crate::Error::Forked`], [`crate::Error::Held`], [`crate::Error::Expelled`].
    pub fn unregister(&self, number: Number) -> Result<()> {
        self.participant.unregister(number, None)
    }

    /// All objects for which a living process is registered, by slot. Looks at each process of the domain: for tools, not
    /// for hot paths.
    ///
    /// # Errors
    /// [`crate::Error::Forked`], [`crate::Error::Held`], [`crate::Error::Expelled`], [`crate::Error::System`].
    pub fn objects(&self) -> Result<Vec<ObjectInfo>> {
        let info = |listed: Listed| ObjectInfo {
            number: listed.number,
            kind: listed.entry.kind,
            size: listed.entry.file.size,
            registrants: listed.registrants,
        };
        Ok(self.participant.objects()?.into_iter().map(info).collect())
    }
}
