//! A word of thread-local storage that is read without a function call.
//!
//! A Rust library may become part of a shared object, so the compiler calls the dynamic linker for
//! each access to a `thread_local!`. The linker may replace the call by a load, but the registers
//! are still saved for it. In the *initial-exec* model of thread-local storage (Drepper, ELF
//! Handling For Thread-Local Storage, 4.3), the offset from the thread pointer is one load. A
//! shared object that is opened at run time gets the word from the surplus that the C library
//! reserves. Stable Rust selects this model only by assembly.

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod model {
    /// The symbol has the version: two versions of this crate in one program have separate words.
    macro_rules! name {
        () => {
            concat!(
                "umf_sync_thread_word_",
                env!("CARGO_PKG_VERSION_MAJOR"),
                "_",
                env!("CARGO_PKG_VERSION_MINOR"),
                "_",
                env!("CARGO_PKG_VERSION_PATCH")
            )
        };
    }

    core::arch::global_asm!(
        ".pushsection .tbss,\"awT\",@nobits",
        ".p2align 2",
        concat!(".globl ", name!()),
        concat!(".hidden ", name!()),
        concat!(".type ", name!(), ",@object"),
        concat!(".size ", name!(), ",4"),
        concat!(name!(), ":"),
        ".zero 4",
        ".popsection",
    );

    #[inline(always)]
    pub(in crate::thread_word) fn get() -> u64 {
        let word: u64;
        // SAFETY: reads the word of the calling thread, which exists as long as the thread.
        unsafe {
            core::arch::asm!(
                concat!("mov {offset}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov {word:e}, dword ptr fs:[{offset}]",
                offset = out(reg) _,
                word = out(reg) word,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        word
    }

    #[inline(always)]
    pub(in crate::thread_word) fn set(word: u32) {
        // SAFETY: writes the word of the calling thread, which only these two functions access.
        unsafe {
            core::arch::asm!(
                concat!("mov {offset}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov dword ptr fs:[{offset}], {word:e}",
                offset = out(reg) _,
                word = in(reg) word,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod model {
    use core::cell::Cell;

    thread_local! {
        static WORD: Cell<u32> = const { Cell::new(0) };
    }

    #[inline(always)]
    pub(in crate::thread_word) fn get() -> u64 {
        u64::from(WORD.get())
    }

    #[inline(always)]
    pub(in crate::thread_word) fn set(word: u32) {
        WORD.set(word);
    }
}

/// Returns the word of the calling thread, initially 0. The load clears the upper half of the
/// register, so a 64-bit result saves an instruction.
#[inline(always)]
pub(crate) fn get() -> u64 {
    model::get()
}

/// Sets the word of the calling thread.
#[inline(always)]
pub(crate) fn set(word: u32) {
    model::set(word);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_word() {
        std::thread::scope(|scope| {
            for number in 1..=4 {
                scope.spawn(move || {
                    assert_eq!(get(), 0);
                    set(number);
                    for _ in 0..100 {
                        assert_eq!(get(), u64::from(number));
                        std::thread::yield_now();
                    }
                    set(0);
                });
            }
        });
    }
}
