//! Stacks of the calling thread, and what the loader knows of their addresses.

use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use umf_core::leaks::{self, CodePlace, FRAMES, Stack};

/// The calling thread's stack, as deep as [`FRAMES`]; empty where this system's C library cannot
/// tell.
///
/// The first call of a process may allocate from the C library. From then on stacks without names
/// are shown with what the loader knows.
#[must_use]
#[inline(never)]
pub fn capture() -> Stack {
    leaks::set_loader(look_up);
    let mut found = [ptr::null_mut(); FRAMES];
    let count = return_addresses(&mut found);
    Stack::new(found[..count].iter().map(|frame| frame.addr()))
}

/// Finds the loaded file that an address in code lies in. Allocates nothing.
fn look_up(address: usize, tell: &mut dyn FnMut(CodePlace<'_>)) {
    if let Some((file, base, name)) = code_at(address) {
        tell(CodePlace {
            name: name.and_then(|name| name.to_str().ok()),
            file: file.to_str().ok(),
            line: None,
            offset: Some(address.wrapping_sub(base)),
        });
    }
}

/// Writes the return addresses of the calling thread's frames, innermost first, and returns how
/// many; 0 where this system's C library cannot tell. Takes no lock of this process, and after the
/// first call allocates nothing.
fn return_addresses(into: &mut [*mut c_void]) -> usize {
    #[cfg(target_env = "gnu")]
    {
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: there is room for as many addresses as it is told.
        let written = unsafe { libc::backtrace(into.as_mut_ptr(), room) };
        usize::try_from(written).unwrap_or(0).min(into.len())
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = into;
        0
    }
}

/// What the loader says of an address in code: the file, where that begins, and the name of what it
/// exports there.
fn code_at(address: usize) -> Option<(&'static CStr, usize, Option<&'static CStr>)> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `info` is valid for the write; any address may be asked about.
    if unsafe { libc::dladdr(ptr::without_provenance(address), info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it was found, so `info` was written.
    let info = unsafe { info.assume_init() };
    let text = |name: *const c_char| {
        // SAFETY: names that the loader gives are C strings, which stay as long as the file is
        // loaded; what is in a stack that may be returned to is.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    };
    Some((text(info.dli_fname)?, info.dli_fbase.addr(), text(info.dli_sname)))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use umf_core::leaks::{LeakReport, LeakSite, LeakSize, LeakTime, set_resolver};

    use super::*;

    #[inline(never)]
    fn place() -> Stack {
        std::hint::black_box(capture())
    }

    #[test]
    fn stacks_tell_places_apart_and_are_shown() {
        let same: Vec<Stack> = (0..2).map(|_| place()).collect();
        let other = place();
        if same[0].frames().next().is_none() {
            println!("umf-skip: this C library does not tell where something is called");
            return;
        }
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], other);
        let plain = other.to_string();
        assert!(plain.contains("+0x"), "{plain}");
        set_resolver(|address, tell| {
            let name = format!("function_{address:x}");
            tell(CodePlace { name: Some(&name), file: Some("f.rs"), line: Some(7), offset: None });
        });
        let resolved = other.to_string();
        let (sites, sizes) = (
            [LeakSite { stack: other, blocks: 2, bytes: 30, oldest: Duration::from_millis(1) }],
            [LeakSize { block_size: 16, blocks: 2 }],
        );
        let mut report = LeakReport {
            pool: "p",
            time: LeakTime::PoolEnd,
            blocks: 2,
            bytes: 32,
            sizes: &sizes,
            sampled: 1,
            sites: &sites,
            is_global: false,
        };
        let text = report.to_string();
        report.is_global = true;
        let global = report.to_string();
        assert!(resolved.contains("function_") && resolved.contains(" at f.rs:7"), "{resolved}");
        assert!(
            text.starts_with("pool p: 2 blocks, 32 bytes were never freed, at the end of the pool\n"),
            "{text}"
        );
        assert!(text.contains("2 of 16 bytes") && text.contains("function_"), "{text}");
        assert!(!global.contains("function_") && global.contains("+0x"), "{global}");
    }
}
