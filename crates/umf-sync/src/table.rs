//! [`Table`]: numbered records that are allocated and released, and that readers access without a
//! lock.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::Lock;
use crate::chunks::{Chunks, Zeroable};

use umf_core::{Error, Result};

/// The unused numbers.
#[derive(Debug)]
struct Numbers {
    /// The first number that was never allocated.
    next: u32,
    /// The number that was released last, 0 for none.
    free: u32,
}

/// Records by number. Number 0 is never allocated, so that 0 can mean "none".
///
/// Reading a record acquires no lock; allocating and releasing a number acquire one. A released
/// record keeps its memory and its old content. If readers may find a released record, its owner
/// must mark it.
#[derive(Debug)]
pub struct Table<T: Zeroable, const FIRST: usize = 4096> {
    records: Chunks<T, FIRST>,
    links: Chunks<AtomicU32>,
    numbers: Lock<Numbers>,
    limit: u32,
}

impl<T: Zeroable, const FIRST: usize> Table<T, FIRST> {
    /// Returns an empty table for up to `limit` records.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self {
            records: Chunks::new(),
            links: Chunks::new(),
            numbers: Lock::new(Numbers { next: 1, free: 0 }),
            limit,
        }
    }

    /// Returns the record with this number, allocated or not; `None` if it never was.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.records.get(number)
    }

    /// Returns record 0, which is never allocated. The records up to `FIRST` follow it in memory:
    /// for hot paths that handle larger numbers on another path.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no memory can be mapped.
    pub fn first(&self) -> Result<&T> {
        self.records.get_or_grow(0)
    }

    /// Allocates an unused number, and returns it with its record.
    ///
    /// # Errors
    /// [`Error::TooMany`] at the limit, [`Error::OutOfMemory`] if no memory can be mapped.
    pub fn allocate(&self) -> Result<(u32, &T)> {
        let mut numbers = self.numbers.lock();
        let number = numbers.free;
        if number != 0 {
            let link = self.links.get_or_grow(number)?;
            let record = self.records.get_or_grow(number)?;
            numbers.free = link.load(Ordering::Relaxed);
            return Ok((number, record));
        }
        let number = numbers.next;
        if number > self.limit {
            return Err(Error::TooMany { what: "records", limit: self.limit as usize });
        }
        // Both must exist before the number does: `release` cannot fail.
        self.links.get_or_grow(number)?;
        let record = self.records.get_or_grow(number)?;
        numbers.next += 1;
        Ok((number, record))
    }

    /// Releases a number, which [`Table::allocate`] returned, once.
    pub fn release(&self, number: u32) {
        let mut numbers = self.numbers.lock();
        if let Some(link) = self.links.get(number) {
            link.store(numbers.free, Ordering::Relaxed);
            numbers.free = number;
        }
    }

    /// Returns the end of the numbers that were ever allocated: `1..end`.
    pub fn end(&self) -> u32 {
        self.numbers.lock().next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn numbers_are_unique_until_released() {
        let table: Table<AtomicU64> = Table::new(100);
        let mut numbers: Vec<u32> = (0..100).map(|_| table.allocate().unwrap().0).collect();
        assert!(matches!(table.allocate(), Err(Error::TooMany { .. })));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!((numbers.len(), numbers[0]), (100, 1));
        table.release(50);
        table.release(60);
        assert_eq!(table.allocate().unwrap().0, 60);
        assert_eq!(table.allocate().unwrap().0, 50);
        assert_eq!(table.end(), 101);
    }
}
