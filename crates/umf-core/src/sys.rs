//! System calls of this crate.

use core::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use crate::{Error, Result};

/// Maps `size` bytes of zeroed private memory. Pages are committed when first touched.
pub(crate) fn map_metadata(size: usize) -> Result<NonNull<u8>> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let out_of_memory = |native| Error::OutOfMemory { size, owner: "metadata", native };
    let pointer = mapped.map_err(|errno| out_of_memory(errno.raw_os_error()))?;
    NonNull::new(pointer.cast::<u8>()).ok_or(out_of_memory(0))
}

/// The system's number of the calling thread.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Writes the return addresses of the calling thread's frames, innermost first, and returns how many; 0 where this system's C
/// library cannot tell. Takes no lock of this process, and after the first call allocates nothing.
pub(crate) fn return_addresses(into: &mut [*mut core::ffi::c_void]) -> usize {
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

/// What the loader says of an address in code: the file, where that begins, and the name of what it exports there.
pub(crate) fn code_at(
    address: usize,
) -> Option<(&'static core::ffi::CStr, usize, Option<&'static core::ffi::CStr>)> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `info` is valid for the write; any address may be asked about.
    if unsafe { libc::dladdr(core::ptr::without_provenance(address), info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it was found, so `info` was written.
    let info = unsafe { info.assume_init() };
    let text = |name: *const core::ffi::c_char| {
        // SAFETY: names that the loader gives are C strings, which stay as long as the file is loaded; what is in a stack that
        // somebody may come back to is.
        (!name.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(name) })
    };
    Some((text(info.dli_fname)?, info.dli_fbase.addr(), text(info.dli_sname)))
}

/// Has `function` called when the process ends by `exit`. `false` if that cannot be.
pub(crate) fn at_exit(function: extern "C" fn()) -> bool {
    // SAFETY: the function is of a library that stays loaded (see `fork::stay_loaded`).
    unsafe { libc::atexit(function) == 0 }
}

/// Writes to standard output (1) or standard error (2), as far as that goes.
pub(crate) fn write_standard(number: i32, text: &[u8]) -> core::result::Result<usize, rustix::io::Errno> {
    // SAFETY: nobody closes what is behind the number while it is borrowed for this one call, or it is an error.
    rustix::io::write(unsafe { rustix::fd::BorrowedFd::borrow_raw(number) }, text)
}

/// Returns `AT_SECURE` of the auxiliary vector.
pub(crate) fn is_secure() -> bool {
    // SAFETY: `getauxval` takes a number and reads what the kernel gave this process at `execve`.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the value of an environment variable, whatever the rights of this process. Allocates
/// nothing.
#[allow(clippy::disallowed_methods, reason = "`environment` calls this, and checks `is_secure` before")]
pub(crate) fn variable(name: &core::ffi::CStr) -> Option<&'static core::ffi::CStr> {
    // SAFETY: a C string; as everywhere, nobody changes the environment while others read it.
    let value = NonNull::new(unsafe { libc::getenv(name.as_ptr()) })?;
    // SAFETY: getenv yields C strings that stay until the variable is changed, which nobody does.
    Some(unsafe { core::ffi::CStr::from_ptr(value.as_ptr()) })
}
