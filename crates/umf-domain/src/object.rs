//! [`Object`]: a region of a domain, registered by this process.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use umf_core::{Plain, View};

use crate::participant::Participant;
use crate::sys::SharedMapping;
use crate::{Number, Result};

/// A region of a domain, for which this process is registered, and its memory.
///
/// All objects with the same number stand for the one registration of this process. It ends when the last of them is
/// dropped, or by [`Object::unregister`] whatever others there are; those then keep their memory until they are dropped,
/// but [`Object::is_registered`] says no. When the last registered process unregisters or dies, the number is not valid
/// any more, and the memory goes with the last mapping of it.
///
/// Other processes may write the memory at any time, so there is no `&[u8]` of it: use the volatile slice with its
/// copies, atomics and typed access. It can be used in any thread, and clones are cheap.
///
/// Dropping the last one waits for the domain's arbiter, which others hold for microseconds. If that does not come in
/// the domain's timeout, the registration ends at this process's next call on the domain, or with the process.
#[derive(Clone)]
pub struct Object {
    registered: Arc<Registered>,
}

/// What all clones of an [`Object`] share.
#[derive(Debug)]
pub(crate) struct Registered {
    /// First, so that the memory is unmapped before the last of the domain goes.
    memory: SharedMapping,
    number: Number,
    kind: u32,
    ended: Arc<AtomicBool>,
    participant: Arc<Participant>,
}

impl Registered {
    pub(crate) fn new(
        participant: &Arc<Participant>,
        number: Number,
        kind: u32,
        memory: SharedMapping,
        ended: &Arc<AtomicBool>,
    ) -> Arc<Self> {
        let (participant, ended) = (Arc::clone(participant), Arc::clone(ended));
        Arc::new(Self { memory, number, kind, ended, participant })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.participant.belongs_here() && !self.ended.load(Ordering::Acquire) {
            self.participant.let_go(self.number);
        }
    }
}

impl Object {
    pub(crate) const fn new(registered: Arc<Registered>) -> Self {
        Self { registered }
    }

    /// By which other processes register.
    #[must_use]
    pub fn number(&self) -> Number {
        self.registered.number
    }

    /// What its creator said that it is.
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.registered.kind
    }

    /// Its size in bytes, never 0: what was asked for, rounded up to pages.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.registered.memory.size()
    }

    /// Returns a view of the memory as elements of `T`: as many as there are whole ones. Other
    /// processes may read and write the memory at the same time. It is zero when it is created.
    ///
    /// The memory stays valid as long as the object exists, in forked children too, and also after
    /// processes unregister or die.
    ///
    /// # Errors
    /// [`umf_core::Error::BadAlignment`] for types that are aligned to more than a page.
    pub fn view<T: Plain>(&self) -> umf_core::Result<View<'_, T>> {
        let memory = &self.registered.memory;
        // SAFETY: the mapping is readable and writable, lives as long as `self`, and cannot be cut short: the size of its
        // file is sealed.
        unsafe { View::<u8>::new(memory.base().as_ptr(), memory.size()) }?.cast()
    }

    /// Whether this process is registered by it: not after [`Object::unregister`], and not in a forked child.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registered.participant.belongs_here() && !self.registered.ended.load(Ordering::Acquire)
    }

    /// Ends the registration of this process at once, whatever other objects have this number. The last one out destroys
    /// the object.
    ///
    /// # Errors
    /// [`crate::Error::NotRegistered`] if that was done before; [`crate::Error::Forked`]; [`crate::Error::Held`].
    pub fn unregister(self) -> Result<()> {
        let Registered { participant, number, ended, .. } = &*self.registered;
        participant.unregister(*number, Some(ended))
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("number", &format_args!("{}", self.number()))
            .field("kind", &self.kind())
            .field("len", &self.len())
            .field("registered", &self.is_registered())
            .finish_non_exhaustive()
    }
}
