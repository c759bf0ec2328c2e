//! [`capture`]: the stack of the calling thread; and the loader as a resolver of its addresses.

use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use umf_core::leaks::{self, CodePlace, FRAMES, Stack};

/// Captures the stack of the calling thread, up to [`FRAMES`] frames. Returns an empty stack if the
/// C library has no `backtrace`.
///
/// The first call of a process may make the C library allocate. It also sets the loader as the
/// resolver for addresses without a symbol.
#[must_use]
#[inline(never)]
pub fn capture() -> Stack {
    leaks::set_loader(resolve_by_loader);
    let mut found = [ptr::null_mut(); FRAMES];
    let count = return_addresses(&mut found);
    Stack::new(found[..count].iter().map(|frame| frame.addr()))
}

/// Calls `visit` with the loaded file of an address. Allocates nothing.
fn resolve_by_loader(address: usize, visit: &mut dyn FnMut(CodePlace<'_>)) {
    if let Some((file, base, name)) = code_at(address) {
        visit(CodePlace {
            name: name.and_then(|name| name.to_str().ok()),
            file: file.to_str().ok(),
            line: None,
            offset: Some(address.wrapping_sub(base)),
        });
    }
}

/// Writes the return addresses of the calling thread's frames, innermost first. Returns their
/// number; 0 if the C library has no `backtrace`. Acquires no lock of umf, and allocates only in
/// the first call.
fn return_addresses(into: &mut [*mut c_void]) -> usize {
    #[cfg(target_env = "gnu")]
    {
        let capacity = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: `into` has at least `capacity` elements.
        let written = unsafe { libc::backtrace(into.as_mut_ptr(), capacity) };
        usize::try_from(written).unwrap_or(0).min(into.len())
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = into;
        0
    }
}

/// Returns the loaded file of an address, its base address, and the exported symbol at the address
/// (`dladdr(3)`).
fn code_at(address: usize) -> Option<(&'static CStr, usize, Option<&'static CStr>)> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `info` is valid for the write, and any address is a valid argument.
    if unsafe { libc::dladdr(ptr::without_provenance(address), info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it wrote `info`.
    let info = unsafe { info.assume_init() };
    let text = |name: *const c_char| {
        // SAFETY: `dladdr` returns C strings that are valid while the file is loaded. The stack
        // returns to the file, so it is loaded.
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
    fn capture_here() -> Stack {
        std::hint::black_box(capture())
    }

    #[test]
    fn stacks_differ_by_call_site_and_are_displayed() {
        let same: Vec<Stack> = (0..2).map(|_| capture_here()).collect();
        let other = capture_here();
        if same[0].frames().next().is_none() {
            println!("umf-skip: this C library does not capture stacks");
            return;
        }
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], other);
        let plain = other.to_string();
        assert!(plain.contains("+0x"), "{plain}");
        set_resolver(|address, visit| {
            let name = format!("function_{address:x}");
            visit(CodePlace { name: Some(&name), file: Some("f.rs"), line: Some(7), offset: None });
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
