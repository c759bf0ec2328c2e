//! Memory of destroyed IPC handles.
//!
//! A program may get and put a handle for each message. Each thread therefore keeps the memory of
//! the handles that it destroyed last, and a new handle gets the oldest memory. A destroyed handle
//! has a mark, so that a second use is an error as long as its memory is kept.

use core::cell::RefCell;
use core::ptr::NonNull;
use std::collections::VecDeque;

use super::ipc::IpcHandle;

/// Destroyed handles of which a thread keeps the memory, at most.
const KEPT: usize = 256;

thread_local! {
    static DESTROYED: RefCell<Destroyed> = const { RefCell::new(Destroyed(VecDeque::new())) };
}

/// The memory that a thread keeps, the oldest first: boxes that nothing else owns. It is freed at
/// the thread's exit.
struct Destroyed(VecDeque<NonNull<IpcHandle>>);

impl Destroyed {
    /// Takes the oldest memory if there is as much as may be kept.
    #[inline]
    fn take(&mut self) -> Option<NonNull<IpcHandle>> {
        if self.0.len() < KEPT { None } else { self.0.pop_front() }
    }

    /// Keeps memory. Returns memory that cannot be kept.
    #[inline]
    fn keep(&mut self, memory: NonNull<IpcHandle>) -> Option<NonNull<IpcHandle>> {
        if self.0.capacity() == 0 && self.0.try_reserve_exact(KEPT).is_err() {
            return Some(memory);
        }
        let oldest = self.take();
        self.0.push_back(memory);
        oldest
    }
}

impl Drop for Destroyed {
    fn drop(&mut self) {
        for memory in self.0.drain(..) {
            // SAFETY: nothing else owns the box.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
        }
    }
}

/// Returns memory with this handle.
#[inline]
pub(super) fn allocate(handle: IpcHandle) -> NonNull<IpcHandle> {
    // A thread that is ending keeps nothing.
    let taken = DESTROYED.try_with(|destroyed| destroyed.borrow_mut().take());
    let Some(memory) = taken.ok().flatten() else {
        return NonNull::from(Box::leak(Box::new(handle)));
    };
    // SAFETY: nothing else owns the box, and its contents need no drop.
    unsafe { memory.write(handle) };
    memory
}

/// Destroys a handle.
///
/// # Safety
/// The memory is of [`allocate`], and is not destroyed yet. The caller does not use it afterwards.
#[inline]
pub(super) unsafe fn destroy(mut memory: NonNull<IpcHandle>) {
    // SAFETY: the caller guarantees a handle that no other code uses.
    unsafe { memory.as_mut() }.mark_as_destroyed();
    let excess = DESTROYED.try_with(|destroyed| destroyed.borrow_mut().keep(memory));
    if let Some(excess) = excess.unwrap_or(Some(memory)) {
        // SAFETY: nothing else owns the box.
        drop(unsafe { Box::from_raw(excess.as_ptr()) });
    }
}
