//! Generation: a number by which a process knows whether it is a forked child.
//!
//! It lies in a page that the kernel wipes in a child (`MADV_WIPEONFORK`, `madvise(2)`, Linux 4.14).
//! Where the kernel refuses that, the handler of `fork(3)` in the child does it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::{fork, sys};

/// A word that the kernel wipes in a child: the generation, or 0 in a child that does not know its own
/// yet.
static CANARY: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// Whether the kernel wipes it.
static IS_WIPED: AtomicBool = AtomicBool::new(false);
/// At least what the canary says, or said in the parent.
static GENERATION: AtomicU32 = AtomicU32::new(1);

fn canary() -> Option<&'static AtomicU32> {
    // SAFETY: a published canary page is never unmapped.
    NonNull::new(CANARY.load(Ordering::Acquire)).map(|canary| unsafe { canary.as_ref() })
}

/// A number of this process, not 0, that is larger than those of the processes it was forked from.
///
/// Two loads. Everything that belongs to one process only remembers this number and compares.
/// A child made by raw `clone` without `CLONE_VM` is noticed as well as one made by `fork(3)`, where the
/// kernel wipes the page.
#[inline]
pub fn generation() -> u32 {
    match canary().map(|canary| canary.load(Ordering::Relaxed)) {
        Some(generation) if generation != 0 => generation,
        _ => notice(),
    }
}

/// Threads of a child may come here at the same time, and signal handlers in between: none waits for
/// another.
#[cold]
fn notice() -> u32 {
    let Some(canary) = canary() else {
        fork::install();
        return GENERATION.load(Ordering::Relaxed);
    };
    let new = GENERATION.load(Ordering::Relaxed) + 1;
    // Before the canary has it: a child forked in between gets a larger one.
    GENERATION.fetch_max(new, Ordering::AcqRel);
    canary.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire).err().unwrap_or(new)
}

/// The first thing in a child of `fork(3)`.
pub(crate) fn begin_child() {
    match canary() {
        Some(canary) if !IS_WIPED.load(Ordering::Relaxed) => canary.store(0, Ordering::Relaxed),
        Some(_) => {}
        None => _ = GENERATION.fetch_add(1, Ordering::Relaxed),
    }
}

/// Makes the page, if no other thread is first and there is memory for it.
pub(crate) fn make_canary() {
    let Ok(page) = sys::map(sys::PAGE) else { return };
    // SAFETY: the page was mapped above and is not shared yet.
    IS_WIPED.store(unsafe { sys::wipe_on_fork(page, sys::PAGE) }.is_ok(), Ordering::Relaxed);
    let canary = page.cast::<AtomicU32>();
    // SAFETY: a zeroed page is a valid AtomicU32.
    unsafe { canary.as_ref() }.store(GENERATION.load(Ordering::Relaxed), Ordering::Relaxed);
    let none = core::ptr::null_mut();
    if CANARY.compare_exchange(none, canary.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first, and no thread has seen this page.
        unsafe { sys::unmap(page, sys::PAGE) };
    }
}
