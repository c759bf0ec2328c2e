//! [`Object`] and the registrations of this process, and the memory files behind them.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use umf_core::{Plain, View};
use umf_ipc::fd_socket::{FdSource, OutgoingFd, SharedFd};

use crate::participant::Participant;
use crate::sys::SharedMapping;
use crate::table::Entry;
use crate::{ObjectId, Result};

/// A region of a domain, for which this process is registered, and its memory.
///
/// All objects with the same id share the one registration of this process. The registration ends
/// when the last of them is dropped, or by [`Object::unregister`]. Other handles then keep the
/// memory until they are dropped, and their [`Object::is_registered`] returns `false`. When the
/// last registrant unregisters or dies, the id becomes invalid. The kernel frees the memory with
/// its last mapping.
///
/// Other processes may write the memory at any time, so there is no `&[u8]` of it:
/// [`Object::view`] copies, and has atomic and typed access. An object can be used by any thread,
/// and clones are cheap.
///
/// Dropping the last handle waits for the domain's arbiter, which other processes hold for
/// microseconds. If the wait times out, the registration ends at this process's next call on the
/// domain, or with the process.
#[derive(Clone)]
pub struct Object {
    inner: Arc<ObjectInner>,
}

/// The part of an [`Object`] that its clones share.
#[derive(Debug)]
pub(crate) struct ObjectInner {
    /// The first field, so that the memory is unmapped before the participant is dropped.
    memory: SharedMapping,
    id: ObjectId,
    kind: u32,
    has_ended: Arc<AtomicBool>,
    participant: Arc<Participant>,
}

impl ObjectInner {
    pub(crate) fn new(
        participant: &Arc<Participant>,
        id: ObjectId,
        kind: u32,
        memory: SharedMapping,
        has_ended: &Arc<AtomicBool>,
    ) -> Arc<Self> {
        let (participant, has_ended) = (Arc::clone(participant), Arc::clone(has_ended));
        Arc::new(Self { memory, id, kind, has_ended, participant })
    }
}

impl Drop for ObjectInner {
    fn drop(&mut self) {
        if self.participant.is_own_process() && !self.has_ended.load(Ordering::Acquire) {
            self.participant.release(self.id);
        }
    }
}

impl Object {
    pub(crate) const fn new(inner: Arc<ObjectInner>) -> Self {
        Self { inner }
    }

    /// Returns the id, by which other processes register.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.inner.id
    }

    /// Returns the kind that the creator chose.
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.inner.kind
    }

    /// Returns the size in bytes: the requested size, rounded up to pages. It is never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.inner.memory.size()
    }

    /// Returns a view of the memory as elements of `T`, without a partial one at the end. Other
    /// processes may read and write the memory at the same time. A new region is zeroed.
    ///
    /// The memory stays valid as long as the object exists, in forked children too, and also after
    /// processes unregister or die.
    ///
    /// # Errors
    /// [`umf_core::Error::BadAlignment`] for types that are aligned to more than a page.
    pub fn view<T: Plain>(&self) -> umf_core::Result<View<'_, T>> {
        let memory = &self.inner.memory;
        // SAFETY: the mapping is readable and writable and lives as long as `self`. The size of its
        // file is sealed, so that no process can truncate it.
        unsafe { View::<u8>::new(memory.base().as_ptr(), memory.size()) }?.cast()
    }

    /// Whether this process is registered by this object: `false` after [`Object::unregister`], and
    /// in a forked child.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.inner.participant.is_own_process() && !self.inner.has_ended.load(Ordering::Acquire)
    }

    /// Ends the registration of this process now, also if other handles have this id. If it was the
    /// last registration, the object is destroyed.
    ///
    /// # Errors
    /// [`crate::Error::NotRegistered`] if the registration has ended before;
    /// [`crate::Error::Forked`]; [`crate::Error::ArbiterHeld`].
    pub fn unregister(self) -> Result<()> {
        let ObjectInner { participant, id, has_ended, .. } = &*self.inner;
        participant.unregister(*id, Some(has_ended))
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("id", &format_args!("{}", self.id()))
            .field("kind", &self.kind())
            .field("len", &self.len())
            .field("registered", &self.is_registered())
            .finish_non_exhaustive()
    }
}

/// One object that this process is registered for. Changed by threads that hold the arbiter; read
/// by the server's thread.
#[derive(Debug)]
pub(crate) struct Registration {
    pub file: Arc<OwnedFd>,
    pub entry: Entry,
    pub handle: Weak<ObjectInner>,
    /// Set when the registration ends, for handles that still exist.
    pub has_ended: Arc<AtomicBool>,
}

/// The registrations of this process in one domain. Its lock is held for a look-up, and never while
/// a thread waits for another process.
#[derive(Debug, Default)]
pub(crate) struct Registrations(Mutex<BTreeMap<ObjectId, Registration>>);

impl Registrations {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectId, Registration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `read` with a registration, under the lock. Returns the result, which the caller drops
    /// outside of the lock.
    pub(crate) fn with<T>(&self, id: ObjectId, read: impl FnOnce(&mut Registration) -> T) -> Option<T> {
        self.lock().get_mut(&id).map(read)
    }

    pub(crate) fn insert(&self, id: ObjectId, registration: Registration) {
        let former = self.lock().insert(id, registration);
        drop(former);
    }

    /// Removes a registration, and marks it as ended.
    pub(crate) fn remove(&self, id: ObjectId) -> Option<Registration> {
        let removed = self.lock().remove(&id);
        if let Some(registration) = &removed {
            registration.has_ended.store(true, Ordering::Release);
        }
        removed
    }

    /// Returns whether the object has a registration and no handle.
    pub(crate) fn is_unused(&self, id: ObjectId) -> bool {
        self.with(id, |registration| registration.handle.strong_count() == 0).unwrap_or(false)
    }

    /// Returns the objects with a registration and without a handle.
    pub(crate) fn unused(&self) -> Vec<ObjectId> {
        let registrations = self.lock();
        let unused = registrations.iter().filter(|(_, registration)| registration.handle.strong_count() == 0);
        unused.map(|(&id, _)| id).collect()
    }

    /// Returns whether the lock is free. If it is held in a forked child, a thread of the parent
    /// was changing the map, which may be inconsistent.
    pub(crate) fn is_consistent(&self) -> bool {
        !matches!(self.0.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }
}

/// The fds that the server of a participant sends.
///
/// It holds a weak reference to the registrations, so that a forked child, which has no server
/// thread, can drop them.
pub(crate) struct ServedFds {
    pub table: SharedFd,
    pub registrations: Weak<Registrations>,
}

impl FdSource for ServedFds {
    fn ledger(&self) -> Option<SharedFd> {
        Some(Arc::clone(&self.table))
    }

    /// A domain has no leases.
    fn lease_table(&self) -> Option<OutgoingFd> {
        None
    }

    fn data(&self, slot: u32, generation: u64) -> Result<Arc<OwnedFd>, u64> {
        let id = ObjectId::from(generation);
        let registrations = self.registrations.upgrade().filter(|_| slot == u32::from(id.slot()));
        registrations.and_then(|all| all.with(id, |found| Arc::clone(&found.file))).ok_or(0)
    }
}

/// The memory of an object: a memfd whose size is sealed.
pub(crate) mod region {
    use std::os::fd::OwnedFd;

    use umf_os::ReceivedFd;
    use umf_sync::failpoint;

    use crate::sys::{self, SealedFile, SharedMapping};
    use crate::{Error, Result};

    /// Creates a region of `size` bytes, rounded up to pages, and maps it.
    pub(crate) fn create(domain: &str, size: usize) -> Result<(OwnedFd, SealedFile, SharedMapping)> {
        let page = sys::page_size();
        let largest = sys::file_size_limit().min(isize::MAX as u64) & !(page as u64 - 1);
        let rounded =
            size.checked_next_multiple_of(page).filter(|&rounded| size > 0 && rounded as u64 <= largest);
        let rounded = rounded.ok_or(Error::BadSize { size, largest })?;
        let fd = sys::memfd(&format!("umf-domain/{domain}"), rounded as u64)
            .map_err(Error::system("memfd_create of a region"))?;
        failpoint!("domain.region_made");
        let mapping = SharedMapping::of_data(&fd, rounded).map_err(Error::system("mmap of a region"))?;
        let file = sys::sealed_file(&fd).map_err(Error::system("fstat of a region"))?;
        let file = file.ok_or_else(|| Error::system("sealing of a region")(rustix::io::Errno::OPNOTSUPP))?;
        Ok((fd, file, mapping))
    }

    /// Maps the file that a participant sent for an object. Returns `None` if it is another file
    /// than the one in the table.
    pub(crate) fn open(fd: ReceivedFd, expected: SealedFile) -> Result<Option<(OwnedFd, SharedMapping)>> {
        let found = sys::sealed_file(&fd).map_err(Error::system("fstat of a region"))?;
        let size = usize::try_from(expected.size).ok().filter(|&size| size > 0);
        match size {
            Some(size) if found == Some(expected) => {
                let fd = fd.into_inner();
                let mapping = map(&fd, size)?;
                Ok(Some((fd, mapping)))
            }
            _ => Ok(None),
        }
    }

    /// Maps a file of this size.
    pub(crate) fn map(fd: &OwnedFd, size: usize) -> Result<SharedMapping> {
        let mapping = SharedMapping::of_data(fd, size).map_err(Error::system("mmap of a region"))?;
        failpoint!("domain.region_mapped");
        Ok(mapping)
    }
}

#[cfg(test)]
mod tests {
    use umf_os::ReceivedFd;

    use super::*;
    use crate::Error;
    use crate::sys::{self, SealedFile};

    #[test]
    fn region_of_bad_size_or_other_file_is_refused() {
        for bad in [0, usize::MAX, isize::MAX as usize] {
            let created = region::create("test", bad);
            assert!(matches!(created, Err(Error::BadSize { size, .. }) if size == bad), "{bad}");
        }
        let (fd, file, mapping) = region::create("test", 1).unwrap();
        assert_eq!((file.size, mapping.size()), (sys::page_size() as u64, sys::page_size()));
        let received = || ReceivedFd::from(fd.try_clone().unwrap());
        assert!(region::open(received(), file).unwrap().is_some());
        for other in [
            SealedFile { size: file.size * 2, ..file },
            SealedFile { size: 0, ..file },
            SealedFile { inode: file.inode + 1, ..file },
            SealedFile { device: file.device + 1, ..file },
        ] {
            assert!(region::open(received(), other).unwrap().is_none());
        }
    }
}
