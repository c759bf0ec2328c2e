//! Memory of another process.

use rustix::io::Errno;

use super::Outcome;

/// Reads bytes of another process in one call (`process_vm_readv(2)`); how many came.
pub(crate) fn read(pid: i32, address: u64, into: &mut [u8]) -> Outcome<usize> {
    read_list(pid, &[(address, into.len())], into)
}

/// Reads a list of addresses and lengths, one entry for each, in one call; how many bytes came. At most 1024 entries.
pub(crate) fn read_list(pid: i32, list: &[(u64, usize)], into: &mut [u8]) -> Outcome<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote: Vec<libc::iovec> = list
        .iter()
        .map(|&(address, iov_len)| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
            iov_len,
        })
        .collect();
    // SAFETY: `into` may be written; the kernel checks the other process's memory, and how many entries there are.
    let count = unsafe {
        libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0)
    };
    usize::try_from(count)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
