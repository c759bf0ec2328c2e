//! [`full`]: a sequentially consistent fence, at the price of the cheaper of the machine's two.

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
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}
