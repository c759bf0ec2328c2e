//! [`NodeArena`]: places for tree nodes that do not move, in metadata mappings.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use umf_core::{Error, Result};
use umf_sync::chunks::{Chunks, Zeroable};

/// One place: a node, or the number of the next free place.
union Content<T> {
    node: core::mem::ManuallyDrop<T>,
    next_free: u32,
}

#[repr(transparent)]
struct Place<T>(UnsafeCell<MaybeUninit<Content<T>>>);

// SAFETY: uninitialised is valid for MaybeUninit, and so are zeros; dropping does nothing.
unsafe impl<T> Zeroable for Place<T> {}
// SAFETY: places are reached only through `&mut NodeArena`, or through the pointers that it gave out, whose use
// is the unsafe business of their holder.
unsafe impl<T> Sync for Place<T> {}

/// Places for nodes of `T`. Keeps the memory of what was removed for what comes next.
pub struct NodeArena<T> {
    places: Chunks<Place<T>>,
    /// How many places exist.
    capacity: u32,
    /// How many are in use.
    used: u32,
    /// The first free place below `fresh`, plus one; 0 for none.
    free: u32,
    /// The first place that was never used.
    fresh: u32,
}

impl<T> Default for NodeArena<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> core::fmt::Debug for NodeArena<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} nodes", self.used)
    }
}

impl<T> NodeArena<T> {
    /// No places; maps nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { places: Chunks::new(), capacity: 0, used: 0, free: 0, fresh: 0 }
    }

    /// Makes sure that `more` nodes can be inserted without an error, besides those that are there.
    ///
    /// # Errors
    /// [`Error::TooMany`] past 2^31 nodes, [`Error::OutOfMemory`] for their memory.
    pub fn ensure(&mut self, more: u32) -> Result<()> {
        let too_many = Error::TooMany { what: "regions", limit: 1 << 31 };
        let wanted = self.used.checked_add(more).ok_or(too_many)?;
        while self.capacity < wanted {
            self.places.get_or_grow(self.capacity)?;
            self.capacity += 1;
        }
        Ok(())
    }

    /// How many nodes there are.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// How many there can be before memory is needed.
    #[cfg(test)]
    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Puts a node into a free place, where it stays until removed. `make` gets the number that
    /// [`NodeArena::remove`] wants back.
    ///
    /// # Errors
    /// As [`NodeArena::ensure`].
    pub fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<NonNull<T>> {
        self.ensure(1)?;
        let number = if self.free == 0 { self.fresh } else { self.free - 1 };
        let place = self.places.get_or_grow(number)?.0.get();
        // SAFETY: `number` is free, so nobody else looks at the place, and `NodeArena` is borrowed mutably. A
        // place that was in use before holds the number of the next free one.
        unsafe {
            if self.free == 0 {
                self.fresh += 1;
            } else {
                self.free = (*place).assume_init_ref().next_free;
            }
            self.used += 1;
            let node = core::mem::ManuallyDrop::new(make(number));
            let place = (*place).write(Content { node });
            Ok(NonNull::from(&mut *place.node))
        }
    }

    /// Takes a node out.
    ///
    /// # Safety
    /// `insert` gave this number to the node, it was not removed since, and nobody uses the pointer to it.
    pub unsafe fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.places.get(number)?.0.get();
        // SAFETY: the caller says that a node is there and that nobody else looks at it.
        let node = unsafe {
            let node = core::mem::ManuallyDrop::take(&mut (*place).assume_init_mut().node);
            (*place).write(Content { next_free: self.free });
            node
        };
        self.free = number + 1;
        self.used -= 1;
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_and_are_used_again() {
        let mut nodes = NodeArena::new();
        let placed: Vec<_> =
            (0..1000_u64).map(|value| nodes.insert(|number| (number, value)).unwrap()).collect();
        for (value, placed) in placed.iter().enumerate() {
            // SAFETY: the node was not removed.
            assert_eq!(unsafe { placed.as_ref() }.1, value as u64);
        }
        for placed in &placed[100..200] {
            // SAFETY: in use until the next line.
            let number = unsafe { placed.as_ref() }.0;
            // SAFETY: inserted above, removed once.
            assert!(unsafe { nodes.remove(number) }.is_some());
        }
        nodes.ensure(100).unwrap();
        let capacity = nodes.capacity;
        for value in 0..100_u64 {
            nodes.insert(|number| (number, value)).unwrap();
        }
        assert_eq!((nodes.capacity, nodes.used), (capacity, 1000));
        // SAFETY: node 99 was not removed.
        assert_eq!(unsafe { placed[99].as_ref() }.1, 99);
    }
}
