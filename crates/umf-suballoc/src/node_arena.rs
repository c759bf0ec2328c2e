//! [`NodeArena`]: tree nodes at stable addresses, in metadata mappings.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use umf_core::{Error, Result};
use umf_sync::chunks::{Chunks, Zeroable};

/// The content of a slot: a node, or the number of the next free slot.
union Content<T> {
    node: core::mem::ManuallyDrop<T>,
    next_free: u32,
}

#[repr(transparent)]
struct NodeSlot<T>(UnsafeCell<MaybeUninit<Content<T>>>);

// SAFETY: any bytes are a valid `MaybeUninit`, and it has no drop.
unsafe impl<T> Zeroable for NodeSlot<T> {}
// SAFETY: a slot is accessed through `&mut NodeArena`, or through a pointer that `insert` returned,
// whose dereference is `unsafe`.
unsafe impl<T> Sync for NodeSlot<T> {}

/// An arena for nodes of `T`. Reuses the slots of removed nodes.
pub struct NodeArena<T> {
    slots: Chunks<NodeSlot<T>>,
    /// The number of slots with memory.
    capacity: u32,
    /// The number of slots in use.
    used: u32,
    /// The first free slot below `fresh`, plus one; 0 for none.
    free: u32,
    /// The first slot that was never used.
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
    /// Returns an empty arena. Maps nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Chunks::new(), capacity: 0, used: 0, free: 0, fresh: 0 }
    }

    /// Reserves memory, so that `more` nodes can be inserted without an error.
    ///
    /// # Errors
    /// [`Error::TooMany`] past 2^31 nodes, [`Error::OutOfMemory`] for their memory.
    pub fn ensure(&mut self, more: u32) -> Result<()> {
        let too_many = Error::TooMany { what: "regions", limit: 1 << 31 };
        let wanted = self.used.checked_add(more).ok_or(too_many)?;
        while self.capacity < wanted {
            self.slots.get_or_grow(self.capacity)?;
            self.capacity += 1;
        }
        Ok(())
    }

    /// Returns the number of nodes.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// Returns the number of slots with memory.
    #[cfg(test)]
    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Inserts a node, which does not move until it is removed. `make` gets the number of the node,
    /// for [`NodeArena::remove`].
    ///
    /// # Errors
    /// As [`NodeArena::ensure`].
    pub fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<NonNull<T>> {
        self.ensure(1)?;
        let number = if self.free == 0 { self.fresh } else { self.free - 1 };
        let slot = self.slots.get_or_grow(number)?.0.get();
        // SAFETY: slot `number` is free, so no pointer to it is in use, and `NodeArena` is borrowed
        // mutably. A free slot that was in use before contains the number of the next one.
        unsafe {
            if self.free == 0 {
                self.fresh += 1;
            } else {
                self.free = (*slot).assume_init_ref().next_free;
            }
            self.used += 1;
            let node = core::mem::ManuallyDrop::new(make(number));
            let content = (*slot).write(Content { node });
            Ok(NonNull::from(&mut *content.node))
        }
    }

    /// Removes a node.
    ///
    /// # Safety
    /// `insert` gave this number to the node, it was not removed since, and its pointer is not in
    /// use.
    pub unsafe fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slots.get(number)?.0.get();
        // SAFETY: by the contract of this function the slot contains a node, and no pointer to it
        // is in use.
        let node = unsafe {
            let node = core::mem::ManuallyDrop::take(&mut (*slot).assume_init_mut().node);
            (*slot).write(Content { next_free: self.free });
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
    fn nodes_do_not_move_and_their_slots_are_reused() {
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
