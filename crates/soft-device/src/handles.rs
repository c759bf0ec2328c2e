//! Handles: numbers in tables. A handle is looked up and never followed, so one that is null, stale, of another kind or made
//! up is an answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Error, Result};

/// No number is used twice in a process, of whatever kind.
static NEXT: AtomicUsize = AtomicUsize::new(0x5af7_0000_0040);

/// All objects of a kind.
#[derive(Debug)]
pub struct Handles<T>(RwLock<HashMap<usize, Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Handles<T> {
    /// A number for an object that is made now.
    pub fn next() -> usize {
        NEXT.fetch_add(0x40, Ordering::Relaxed)
    }

    /// Adds an object, and gives its number.
    pub fn insert(&self, object: T) -> usize {
        let handle = Self::next();
        self.insert_as(handle, object);
        handle
    }

    /// Adds an object whose number was given before.
    pub fn insert_as(&self, handle: usize, object: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(object));
    }

    /// The object with this number.
    ///
    /// # Errors
    /// [`Error::NoHandle`].
    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
        found.ok_or(Error::NoHandle)
    }

    /// Takes an object out. It goes once nobody works with it any more.
    ///
    /// # Errors
    /// [`Error::NoHandle`].
    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        found.ok_or(Error::NoHandle)
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes out what is not to be kept.
    pub fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, object| keep(object));
    }
}
