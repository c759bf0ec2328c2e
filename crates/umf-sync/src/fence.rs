//! Memory fences: one at the price of the cheaper of the machine's two, and one of which one side costs nothing, since the other
//! side pays for both.
//!
//! Two threads that each write a word and then read the other's need a full fence on both sides, or each may
//! miss the other's write. Where one side runs a hundred million times a second and the other almost never,
//! the kernel can fence all running threads for the rare one (`membarrier(2)`, Linux 4.14): about a
//! microsecond there, and no instruction at all here.

use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

use crate::sys;

const UNKNOWN: u8 = 0;
const USABLE: u8 = 1;
const REFUSED: u8 = 2;

static ABILITY: AtomicU8 = AtomicU8::new(UNKNOWN);

/// As `fence(Ordering::SeqCst)`: of two threads that each write a word, pass this and then read the other's, one at least reads what
/// was written.
///
/// On `x86_64` it is an instruction with the `lock` prefix, which orders loads behind stores as `mfence` does (Intel SDM
/// volume 3, 9.2.3.4; AMD APM volume 2, 7.4.2) in half the time. The compiler moves no access of memory across it. Elsewhere, and
/// under Miri, it is the fence.
#[inline(always)]
pub fn full() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: adds nothing to a word of this thread's stack; flags count as clobbered, and memory as read and written. Without
    // `nostack` nothing of the function's own lies below the stack pointer, and the word beside it is not just being written.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp - 64], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}

/// Whether the kernel fences other threads for [`heavy`]. Asked once per process; where it does not, both sides
/// have to use [`core::sync::atomic::fence`].
#[must_use]
pub fn is_usable() -> bool {
    if ABILITY.load(Ordering::Relaxed) == UNKNOWN {
        let ability = if sys::register_barrier() && sys::barrier() { USABLE } else { REFUSED };
        // All threads have to go by the same answer.
        let _ = ABILITY.compare_exchange(UNKNOWN, ability, Ordering::Relaxed, Ordering::Relaxed);
    }
    ABILITY.load(Ordering::Relaxed) == USABLE
}

/// The side that costs nothing: what the thread wrote before and reads after keeps its order as seen by a
/// thread that calls [`heavy`] in between, if [`is_usable`].
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The side that runs often, where [`heavy`] is the other side: [`light`] if [`is_usable`], else [`full`].
#[inline(always)]
pub fn light_or_full() {
    if ABILITY.load(Ordering::Relaxed) == USABLE {
        light();
    } else {
        ask_and_fence();
    }
}

/// The first call in a process asks the kernel. A full fence is right whatever the answer is.
#[cold]
fn ask_and_fence() {
    let _ = is_usable();
    full();
}

/// The other side: after this, every other thread of the process has passed a full fence, as has this one. (Only this
/// one, if not [`is_usable`].)
pub fn heavy() {
    fence(Ordering::SeqCst);
    if !is_usable() {
        return;
    }
    // A child may have to register again.
    if !(sys::barrier() || sys::register_barrier() && sys::barrier()) {
        // The kernel did it before and is not allowed to any more (a seccomp filter of later date). A
        // processor keeps no store to itself for as long as this.
        std::thread::sleep(core::time::Duration::from_millis(2));
    }
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::sync::Barrier;

    /// Dekker's two flags: never may both threads miss each other.
    #[test]
    fn of_two_threads_one_sees_the_other() {
        if !is_usable() {
            println!("umf-skip: no membarrier(2) here");
            return;
        }
        let (rare, often) = (AtomicU32::new(0), AtomicU32::new(0));
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        let seen = [AtomicU32::new(0), AtomicU32::new(0)];
        let rounds = || {
            (1..=3_000).inspect(|_| {
                begin.wait();
            })
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in rounds() {
                    often.store(round, Ordering::Relaxed);
                    light();
                    seen[0].store(rare.load(Ordering::Relaxed), Ordering::Relaxed);
                    end.wait();
                }
            });
            for round in rounds() {
                rare.store(round, Ordering::Relaxed);
                heavy();
                seen[1].store(often.load(Ordering::Relaxed), Ordering::Relaxed);
                end.wait();
                let met = seen.iter().any(|seen| seen.load(Ordering::Relaxed) == round);
                assert!(met, "both missed each other in round {round}");
            }
        });
    }
}
