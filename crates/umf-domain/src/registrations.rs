//! [`Registrations`]: what this process is registered for, and serves to others.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use umf_ipc::fd_socket::{FdSource, Outgoing, SharedFd};

use crate::Number;
use crate::object::Registered;
use crate::table::Entry;

/// One object that this process is registered for. Changed by whoever has the turn; read by the server's thread.
#[derive(Debug)]
pub(crate) struct Registration {
    pub file: Arc<OwnedFd>,
    pub entry: Entry,
    pub handle: Weak<Registered>,
    /// Set when the registration ends, for handles that are still there.
    pub ended: Arc<AtomicBool>,
}

/// By number. Its lock is held for a look-up, never while waiting.
#[derive(Debug, Default)]
pub(crate) struct Registrations(Mutex<BTreeMap<Number, Registration>>);

impl Registrations {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Number, Registration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `look` makes of the registration. Nothing that it returns is dropped under the lock.
    pub(crate) fn with<T>(&self, number: Number, look: impl FnOnce(&mut Registration) -> T) -> Option<T> {
        self.lock().get_mut(&number).map(look)
    }

    pub(crate) fn insert(&self, number: Number, registration: Registration) {
        let before = self.lock().insert(number, registration);
        drop(before);
    }

    /// Ends one.
    pub(crate) fn remove(&self, number: Number) -> Option<Registration> {
        let removed = self.lock().remove(&number);
        if let Some(registration) = &removed {
            registration.ended.store(true, Ordering::Release);
        }
        removed
    }

    /// Whether it is there and nobody has a handle to it.
    pub(crate) fn is_unused(&self, number: Number) -> bool {
        self.with(number, |registration| registration.handle.strong_count() == 0).unwrap_or(false)
    }

    /// All that nobody has a handle to.
    pub(crate) fn unused(&self) -> Vec<Number> {
        let registrations = self.lock();
        let unused = registrations.iter().filter(|(_, registration)| registration.handle.strong_count() == 0);
        unused.map(|(&number, _)| number).collect()
    }

    /// Whether its lock is free, which in a forked child means that it is whole: another thread of the parent may have
    /// been changing it.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.0.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }
}

/// What the server hands out. It shares the registrations without keeping them, so that a forked child, where the
/// server's thread does not exist, can let go of them.
pub(crate) struct Source {
    pub table: SharedFd,
    pub registrations: Weak<Registrations>,
}

impl FdSource for Source {
    fn ledger(&self) -> Option<SharedFd> {
        Some(Arc::clone(&self.table))
    }

    /// A domain has no leases.
    fn lease_table(&self) -> Option<Outgoing> {
        None
    }

    fn data(&self, slot: u32, generation: u64) -> Result<Arc<OwnedFd>, u64> {
        let number = Number::from(generation);
        let registrations = self.registrations.upgrade().filter(|_| slot == u32::from(number.slot()));
        registrations.and_then(|all| all.with(number, |found| Arc::clone(&found.file))).ok_or(0)
    }
}
