//! Memory fences: a full fence by the cheapest instruction, and an asymmetric pair.
//!
//! Two threads that each write a word and then read the other's need a full fence on both sides.
//! Otherwise each may miss the other's write. If one side is hot and the other rare, the rare side
//! can make the kernel fence all running threads (`membarrier(2)`, Linux 4.14). That costs about a
//! microsecond there, and no instruction on the hot side.

use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

use crate::sys;

const UNKNOWN: u8 = 0;
const USABLE: u8 = 1;
const REFUSED: u8 = 2;

static ABILITY: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Fences like `fence(Ordering::SeqCst)`. If two threads each write a word, call this, and read the
/// other's word, at least one reads the new value.
///
/// On `x86_64` this is an instruction with the `lock` prefix. It orders loads after stores as
/// `mfence` does (Intel SDM volume 3, 9.2.3.4; AMD APM volume 2, 7.4.2), in half the time. The
/// compiler moves no memory access across it. Elsewhere, and under Miri, it is the standard fence.
#[inline(always)]
pub fn full() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: adds 0 to a word below the stack pointer of this thread. The assembly clobbers flags
    // and memory. Without `nostack` the compiler keeps nothing below the stack pointer.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp - 64], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}

/// Returns whether the kernel fences other threads for [`heavy`]. The answer is the same during the
/// life of a process. If it is `false`, both sides have to use [`full`].
#[must_use]
pub fn is_usable() -> bool {
    if ABILITY.load(Ordering::Relaxed) == UNKNOWN {
        let ability = if sys::register_barrier() && sys::barrier() { USABLE } else { REFUSED };
        // All threads have to use the same answer.
        let _ = ABILITY.compare_exchange(UNKNOWN, ability, Ordering::Relaxed, Ordering::Relaxed);
    }
    ABILITY.load(Ordering::Relaxed) == USABLE
}

/// Fences on the hot side: a compiler fence. A thread that calls [`heavy`] sees the calling
/// thread's earlier writes before its later reads, if [`is_usable`].
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// Fences on the hot side of [`heavy`]: [`light`] if [`is_usable`], otherwise [`full`].
#[inline(always)]
pub fn light_or_full() {
    if ABILITY.load(Ordering::Relaxed) == USABLE {
        light();
    } else {
        probe_and_fence();
    }
}

/// Probes the kernel at the first call in a process. A full fence is correct in either case.
#[cold]
fn probe_and_fence() {
    let _ = is_usable();
    full();
}

/// Fences on the rare side: makes all threads of the process pass a full fence, or the calling
/// thread only if not [`is_usable`].
pub fn heavy() {
    fence(Ordering::SeqCst);
    if !is_usable() {
        return;
    }
    // A child may have to register again.
    if !(sys::barrier() || sys::register_barrier() && sys::barrier()) {
        // A seccomp filter that was installed later forbids the call. No processor buffers a store
        // for as long as this sleep.
        std::thread::sleep(core::time::Duration::from_millis(2));
    }
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::sync::Barrier;

    /// Dekker's two flags: at least one thread sees the other's.
    #[test]
    fn of_two_fenced_threads_one_sees_the_other() {
        if !is_usable() {
            println!("umf-skip: membarrier(2) is not available");
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
