//! Memory of another process.

use rustix::io::Errno;

use super::Outcome;

/// Reads bytes of another process in one call (`process_vm_readv(2)`); how many came.
pub(crate) fn read(pid: i32, address: u64, into: &mut [u8]) -> Outcome<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: into.len(),
    };
    // SAFETY: `into` may be written; the kernel checks the other process's memory.
    let count = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(count)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
