//! Handles: numbers in tables. A handle is looked up and never followed, so one that is null, stale, of another kind or made
//! up is an answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use level_zero_sys::ZE_RESULT_ERROR_INVALID_NULL_HANDLE;

use crate::entry::{Done, Refusal};

/// No number is used twice in a process, of whatever kind.
static NEXT: AtomicUsize = AtomicUsize::new(0x5af7_0000_0040);

/// All objects of a kind.
#[derive(Debug)]
pub(crate) struct Handles<T>(RwLock<HashMap<usize, Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Handles<T> {
    /// A number for an object that is made now.
    pub(crate) fn next() -> usize {
        NEXT.fetch_add(0x40, Ordering::Relaxed)
    }

    pub(crate) fn insert(&self, object: T) -> usize {
        let handle = Self::next();
        self.insert_as(handle, object);
        handle
    }

    pub(crate) fn insert_as(&self, handle: usize, object: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(object));
    }

    pub(crate) fn get(&self, handle: usize) -> Done<Arc<T>> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
        found.ok_or_else(|| unknown(handle))
    }

    /// Takes an object out. It goes once nobody works with it any more.
    pub(crate) fn remove(&self, handle: usize) -> Done<Arc<T>> {
        let found = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        found.ok_or_else(|| unknown(handle))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, object| keep(object));
    }
}

fn unknown(handle: usize) -> Refusal {
    Refusal::new(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, format!("{handle:#x} is no handle of such an object"))
}
