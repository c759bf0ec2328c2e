//! Which addresses of the process are memory of the device, and whose.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use crate::span::Piece;
use crate::{Access, Backing, Error, Result, Span, sys};

/// Addresses that show a part of some pages.
#[derive(Clone, Debug)]
pub struct Range<T> {
    /// Bytes that were asked for.
    pub size: usize,
    /// The addresses that it takes, in bytes: whole pages.
    pub room: usize,
    /// The pages.
    pub backing: Arc<Backing>,
    /// Where in the pages it begins.
    pub offset: usize,
    /// What the device may do there.
    pub access: Access,
    /// What the interface keeps with it.
    pub owner: T,
}

/// All ranges by their first address.
#[derive(Debug)]
pub struct Addresses<T>(RwLock<BTreeMap<usize, Range<T>>>);

impl<T> Default for Addresses<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T: Clone> Addresses<T> {
    /// Adds a range that begins at `start`.
    pub fn insert(&self, start: usize, range: Range<T>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(start, range);
    }

    /// Removes the range that begins at `start`, if it is as `is_it` says.
    pub fn remove(&self, start: usize, is_it: impl FnOnce(&Range<T>) -> bool) -> Option<Range<T>> {
        let mut ranges = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !ranges.get(&start).is_some_and(is_it) {
            return None;
        }
        ranges.remove(&start)
    }

    /// Changes the range that begins at `start`.
    pub fn change(&self, start: usize, change: impl FnOnce(&mut Range<T>)) {
        if let Some(range) = self.0.write().unwrap_or_else(PoisonError::into_inner).get_mut(&start) {
            change(range);
        }
    }

    /// The range that an address is in, and where that begins.
    pub fn find(&self, address: usize) -> Option<(usize, Range<T>)> {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (start, range) = ranges.range(..=address).next_back()?;
        (address - start < range.size).then(|| (*start, range.clone()))
    }

    /// All ranges that begin within `start..end`.
    pub fn within(&self, start: usize, end: usize) -> Vec<(usize, Range<T>)> {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ranges.range(start..end.max(start)).map(|(start, range)| (*start, range.clone())).collect()
    }

    /// All ranges that `is_it` says.
    pub fn all(&self, is_it: impl Fn(&Range<T>) -> bool) -> Vec<usize> {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ranges.iter().filter(|(_, range)| is_it(range)).map(|(start, _)| *start).collect()
    }

    /// What a command works on: memory of the device, which it has to stay within, or the application's own. `check` sees each
    /// range and may refuse; `is_reserved` says whether addresses where nothing is are the device's all the same.
    pub fn span<E: From<Error>>(
        &self,
        address: usize,
        size: usize,
        access: Access,
        check: impl Fn(&Range<T>) -> core::result::Result<(), E>,
        is_reserved: impl FnOnce(usize, usize) -> bool,
    ) -> core::result::Result<Span, E> {
        let mut span = Span::default();
        while span.size() < size {
            let at = address + span.size();
            let left = size - span.size();
            let Some((start, range)) = self.find(at) else {
                // Never a part of both: that reaches out of an allocation.
                if span.size() > 0 {
                    return Err(Error::OutOfBounds { address, size }.into());
                }
                if is_reserved(address, size) {
                    return Err(Error::NotMapped { address, size }.into());
                }
                return Ok(self.of_application(address, size)?);
            };
            if range.access < access {
                return Err(Error::NotMapped { address: at, size: left }.into());
            }
            check(&range)?;
            let within = at - start;
            // SAFETY: the range shows that part of its pages.
            let seen = unsafe { range.backing.work().add(range.offset + within) };
            let seen = NonNull::new(seen).ok_or(Error::NotMapped { address: at, size: left })?;
            span.push(Piece {
                start: seen,
                size: left.min(range.size - within),
                _backing: Some(range.backing),
            });
        }
        Ok(span)
    }

    /// Whether an address is on the last page of a range, behind what was asked for.
    fn is_past_the_end(&self, address: usize) -> bool {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ranges.range(..=address).next_back().is_some_and(|(start, range)| address - start < range.room)
    }

    fn of_application(&self, address: usize, size: usize) -> Result<Span> {
        let end = address.checked_add(size).ok_or(Error::NotMapped { address, size })?;
        if !self.within(address, end).is_empty() || self.is_past_the_end(address) {
            return Err(Error::OutOfBounds { address, size });
        }
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        let start =
            start.filter(|_| sys::is_mapped(address, size)).ok_or(Error::NotMapped { address, size })?;
        let mut span = Span::default();
        span.push(Piece { start, size, _backing: None });
        Ok(span)
    }
}
