//! Copies between the memory of two processes, by the kernel (`process_vm_readv(2)`, Linux 3.2).

use rustix::io::Errno;

use super::Result;

/// A range of memory of this process or of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Iov {
    pub address: u64,
    pub length: u64,
}

/// Which way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the other process.
    Read,
    /// Into the other process.
    Write,
}

/// The most entries that the kernel takes in one list (`IOV_MAX`).
const MOST: usize = 1024;

/// An entry without its first bytes.
fn iovec(entry: &Iov, skipped: u64) -> libc::iovec {
    libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut((entry.address + skipped) as usize),
        iov_len: (entry.length - skipped) as usize,
    }
}

/// The next entries of `list` from byte `offset` of entry `index` on.
fn window(list: &[Iov], index: usize, offset: u64, into: &mut Vec<libc::iovec>) {
    into.clear();
    for (number, entry) in list[index..].iter().take(MOST).enumerate() {
        let skipped = if number == 0 { offset } else { 0 };
        into.push(iovec(entry, skipped));
    }
}

/// Moves on by `count` bytes.
fn advance(list: &[Iov], index: &mut usize, offset: &mut u64, mut count: u64) {
    while let Some(entry) = list.get(*index) {
        let left = entry.length - *offset;
        if count < left {
            *offset += count;
            return;
        }
        count -= left;
        *index += 1;
        *offset = 0;
    }
}

/// Copies between `local` memory and that of process `pid`, whose lists are equally long in bytes, entries of which wrap no
/// address space. What was copied before an error stays copied.
///
/// # Errors
/// What the call says: `EPERM` where ptrace rights are lacking, `ESRCH`, `EFAULT` for memory that is not there or that the
/// kernel cannot copy (a mapped dma-buf).
///
/// # Safety
/// For [`Direction::Read`], `local` is memory that the caller may write; otherwise, that it may read. The pid is that of the
/// process that is meant.
pub(crate) unsafe fn across(pid: i32, direction: Direction, local: &[Iov], remote: &[Iov]) -> Result<()> {
    let (mut mine, mut theirs) = ((0, 0), (0, 0));
    if let ([one], [other]) = (local, remote) {
        // The same without lists.
        while mine.1 < one.length.min(other.length) {
            // SAFETY: by this function's contract.
            mine.1 += unsafe { once(pid, direction, &[iovec(one, mine.1)], &[iovec(other, mine.1)]) }?;
        }
        return Ok(());
    }
    let (mut local_window, mut remote_window) = (Vec::new(), Vec::new());
    while mine.0 < local.len() && theirs.0 < remote.len() {
        window(local, mine.0, mine.1, &mut local_window);
        window(remote, theirs.0, theirs.1, &mut remote_window);
        // SAFETY: by this function's contract.
        let count = unsafe { once(pid, direction, &local_window, &remote_window) }?;
        advance(local, &mut mine.0, &mut mine.1, count);
        advance(remote, &mut theirs.0, &mut theirs.1, count);
    }
    Ok(())
}

/// One call, and again if a signal came before anything was copied; how much was, which is not nothing.
///
/// # Safety
/// As [`across`].
unsafe fn once(pid: i32, direction: Direction, local: &[libc::iovec], remote: &[libc::iovec]) -> Result<u64> {
    let call = match direction {
        Direction::Read => libc::process_vm_readv,
        Direction::Write => libc::process_vm_writev,
    };
    let (mine, theirs) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    loop {
        // SAFETY: by this function's contract for the local memory; the kernel checks the other one. Both arrays are valid,
        // and have at most IOV_MAX entries.
        let count = unsafe { call(pid, local.as_ptr(), mine, remote.as_ptr(), theirs, 0) };
        match count {
            0 => return Err(Errno::FAULT),
            1.. => return Ok(count.unsigned_abs() as u64),
            _ => match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iov(bytes: &[u8]) -> Iov {
        Iov { address: bytes.as_ptr().expose_provenance() as u64, length: bytes.len() as u64 }
    }

    fn me() -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    #[test]
    fn lists_longer_than_the_kernel_takes() {
        let from: Vec<u8> = (0..30_000_u32).map(|number| (number % 251) as u8).collect();
        let mut to = vec![0_u8; from.len()];
        // Entries of 7 bytes on one side (more than 4,000), of 11 on the other.
        let remote: Vec<Iov> = from.chunks(7).map(iov).collect();
        let local: Vec<Iov> = to.chunks_mut(11).map(|part| iov(part)).collect();
        // SAFETY: ranges of a vector of this test.
        let copied = unsafe { across(me(), Direction::Read, &local, &remote) };
        if copied == Err(Errno::PERM) || copied == Err(Errno::NOSYS) {
            println!("umf-skip: no process_vm_readv(2) here");
            return;
        }
        assert_eq!(copied, Ok(()));
        assert_eq!(from, to);
    }

    #[test]
    fn memory_that_is_not_there() {
        let mut to = vec![0_u8; 8192];
        let local = [iov(&to)];
        let remote = [Iov { address: 4096, length: 8192 }];
        // SAFETY: a vector of this test.
        assert!(unsafe { across(me(), Direction::Read, &local, &remote) }.is_err());
        to[0] = 1;
    }
}
