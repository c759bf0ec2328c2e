//! Copies between the memory of two processes by the kernel (`process_vm_readv(2)`, Linux 3.2), for
//! lists of any length.

use rustix::io::Errno;

use crate::sys::Result;

/// A range of memory of this process or of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Iov {
    pub address: u64,
    pub length: u64,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the other process.
    Read,
    /// Into the other process.
    Write,
}

/// The most entries of a list in one call.
const IOV_MAX: usize = 1024;
/// Smaller gaps between entries are read too, because an entry costs the kernel more than the bytes
/// of a small gap. A gap below the page size lies in the pages of its neighbours, so it is
/// readable.
const MAX_GAP: u64 = 4096;

/// Returns an entry without its first bytes, in the form of the kernel.
fn iovec(entry: &Iov, skipped: u64) -> libc::iovec {
    libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut((entry.address + skipped) as usize),
        iov_len: (entry.length - skipped) as usize,
    }
}

/// A position in a list of ranges.
#[derive(Default)]
struct Progress {
    index: usize,
    offset: u64,
}

impl Progress {
    /// Returns the remaining entries, at most [`IOV_MAX`].
    fn window(&self, list: &[Iov]) -> Vec<libc::iovec> {
        let skipped = |number| if number == 0 { self.offset } else { 0 };
        let rest = list[self.index..].iter().take(IOV_MAX).enumerate();
        rest.map(|(number, entry)| iovec(entry, skipped(number))).collect()
    }

    fn advance(&mut self, list: &[Iov], mut count: u64) {
        while let Some(entry) = list.get(self.index) {
            let left = entry.length - self.offset;
            if count < left {
                self.offset += count;
                return;
            }
            count -= left;
            self.index += 1;
            self.offset = 0;
        }
    }
}

/// Copies between `local` memory and memory of process `pid`. Both lists have the same number of
/// bytes, and no entry wraps the address space. After an error, some bytes may have been copied.
///
/// # Errors
/// `EPERM` without ptrace rights; `ESRCH`; `EFAULT` for memory that is not mapped or that the
/// kernel cannot copy (a mapped dma-buf).
///
/// # Safety
/// For [`Direction::Read`] the caller may write `local`; otherwise it may read it. The pid is that
/// of the intended process.
pub(crate) unsafe fn copy(pid: i32, direction: Direction, local: &[Iov], remote: &[Iov]) -> Result<()> {
    let (mut local_progress, mut remote_progress) = (Progress::default(), Progress::default());
    while local_progress.index < local.len() && remote_progress.index < remote.len() {
        let count = if let ([local], [remote]) = (local, remote) {
            // Without the allocation of two windows.
            let local = [iovec(local, local_progress.offset)];
            let remote = [iovec(remote, remote_progress.offset)];
            // SAFETY: by this function's contract.
            unsafe { copy_once(pid, direction, &local, &remote) }?
        } else {
            let (local, remote) = (local_progress.window(local), remote_progress.window(remote));
            // SAFETY: by this function's contract.
            unsafe { copy_once(pid, direction, &local, &remote) }?
        };
        local_progress.advance(local, count);
        remote_progress.advance(remote, count);
    }
    Ok(())
}

/// Reads as [`copy`] does. Small gaps between `remote` entries are read too, and discarded.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`] for [`Direction::Read`].
pub(crate) unsafe fn read_with_gaps(pid: i32, local: &[Iov], remote: &[Iov]) -> Result<()> {
    let mut discarded = [0_u8; MAX_GAP as usize];
    let discarded = Iov { address: discarded.as_mut_ptr().expose_provenance() as u64, length: MAX_GAP };
    match cover_gaps(local, remote, discarded) {
        // SAFETY: by this function's contract; `discarded` is memory of this function.
        Some((local, remote)) => unsafe { copy(pid, Direction::Read, &local, &remote) },
        // SAFETY: by this function's contract.
        None => unsafe { copy(pid, Direction::Read, local, remote) },
    }
}

/// Makes one system call, and repeats it after a signal. Returns the number of bytes, at least one.
///
/// # Safety
/// As [`copy`].
unsafe fn copy_once(
    pid: i32,
    direction: Direction,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<u64> {
    let call = match direction {
        Direction::Read => libc::process_vm_readv,
        Direction::Write => libc::process_vm_writev,
    };
    let (local_count, remote_count) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    loop {
        // SAFETY: by this function's contract for local memory; the kernel checks the rest. Both
        // arrays are valid and have at most IOV_MAX entries.
        let count = unsafe { call(pid, local.as_ptr(), local_count, remote.as_ptr(), remote_count, 0) };
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

/// Returns both lists such that small gaps between remote entries are read into `discarded`; `None`
/// if there are no such gaps.
fn cover_gaps(local: &[Iov], remote: &[Iov], discarded: Iov) -> Option<(Vec<Iov>, Vec<Iov>)> {
    let gap = |pair: &[Iov]| {
        let gap = pair[1].address.checked_sub(pair[0].address.checked_add(pair[0].length)?)?;
        (gap < MAX_GAP).then_some(gap)
    };
    if !remote.windows(2).any(|pair| gap(pair).is_some()) {
        return None;
    }
    let mut covered_remote: Vec<Iov> = Vec::with_capacity(remote.len());
    let mut covered_local: Vec<Iov> = Vec::with_capacity(local.len() + remote.len());
    let mut at = 0;
    for (number, &next) in remote.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| gap(&[remote[before], next]));
        match (before, covered_remote.last_mut()) {
            (Some(gap), Some(last)) => {
                last.length += gap + next.length;
                if gap > 0 {
                    covered_local.push(Iov { address: discarded.address, length: gap });
                }
            }
            _ => covered_remote.push(next),
        }
        covered_local.extend(subranges(local, at, next.length));
        at += next.length;
    }
    Some((covered_local, covered_remote))
}

/// Returns the ranges of bytes `from` to `from + length` of a list.
pub(crate) fn subranges(list: &[Iov], from: u64, length: u64) -> Vec<Iov> {
    let (mut ranges, mut at) = (Vec::new(), 0_u64);
    for range in list {
        let (start, end) = (from.max(at), (from + length).min(at + range.length));
        if start < end {
            ranges.push(Iov { address: range.address + (start - at), length: end - start });
        }
        at += range.length;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISCARDED: Iov = Iov { address: 1, length: MAX_GAP };

    fn iov(address: u64, length: u64) -> Iov {
        Iov { address, length }
    }

    fn of(bytes: &[u8]) -> Iov {
        iov(bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64)
    }

    fn own_pid() -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    fn bytes(list: &[Iov]) -> Vec<u64> {
        list.iter().flat_map(|entry| entry.address..entry.address + entry.length).collect()
    }

    #[test]
    fn lists_beyond_iov_max_are_copied() {
        let from: Vec<u8> = (0..30_000_u32).map(|number| (number % 251) as u8).collect();
        let mut to = vec![0_u8; from.len()];
        // Entries of 7 bytes on one side (more than 4,000), of 11 on the other.
        let remote: Vec<Iov> = from.chunks(7).map(of).collect();
        let local: Vec<Iov> = to.chunks_mut(11).map(|chunk| of(chunk)).collect();
        // SAFETY: ranges of a vector of this test.
        let copied = unsafe { copy(own_pid(), Direction::Read, &local, &remote) };
        if copied == Err(Errno::PERM) || copied == Err(Errno::NOSYS) {
            println!("umf-skip: no process_vm_readv(2) here");
            return;
        }
        assert_eq!(copied, Ok(()));
        assert_eq!(from, to);
    }

    #[test]
    fn copy_of_unmapped_memory_fails() {
        let mut to = vec![0_u8; 8192];
        // SAFETY: a vector of this test.
        assert!(unsafe { copy(own_pid(), Direction::Read, &[of(&to)], &[iov(4096, 8192)]) }.is_err());
        to[0] = 1;
    }

    #[test]
    fn small_gaps_are_read_and_large_ones_are_not() {
        let remote = [iov(1000, 10), iov(1010, 10), iov(1100, 5), iov(1105 + MAX_GAP, 5), iov(900, 3)];
        let local = [iov(50_000, 33)];
        let (covered_local, covered_remote) = cover_gaps(&local, &remote, DISCARDED).unwrap();
        assert_eq!(covered_remote, [iov(1000, 105), iov(1105 + MAX_GAP, 5), iov(900, 3)]);
        let expected =
            [iov(50_000, 10), iov(50_010, 10), iov(1, 80), iov(50_020, 5), iov(50_025, 5), iov(50_030, 3)];
        assert_eq!(covered_local, expected);
        assert_eq!(cover_gaps(&local, &[iov(0, 1), iov(1 + MAX_GAP, 32)], DISCARDED), None);
    }

    proptest! {
        /// Each byte of the local list is read from the same remote address with and without
        /// covered gaps.
        #[test]
        fn covered_gaps_change_no_byte(
            remote in prop::collection::vec((0..6000_u64, 1..50_u64), 1..12),
            cuts in prop::collection::vec(1..60_u64, 1..12),
        ) {
            let mut at = 10_000;
            let remote: Vec<Iov> = remote
                .into_iter()
                .map(|(gap, length)| {
                    let entry = iov(at + gap, length);
                    at += gap + length;
                    entry
                })
                .collect();
            let all: u64 = remote.iter().map(|entry| entry.length).sum();
            let (mut local, mut left) = (Vec::new(), all);
            for (number, cut) in cuts.into_iter().cycle().enumerate() {
                if left == 0 {
                    break;
                }
                local.push(iov(1 << 40 | (number as u64) << 20, cut.min(left)));
                left -= cut.min(left);
            }
            let expected: Vec<(u64, u64)> = bytes(&remote).into_iter().zip(bytes(&local)).collect();
            if let Some((covered_local, covered_remote)) = cover_gaps(&local, &remote, DISCARDED) {
                let (from, to) = (bytes(&covered_remote), bytes(&covered_local));
                prop_assert_eq!(from.len(), to.len());
                let copied: Vec<(u64, u64)> =
                    from.into_iter().zip(to).filter(|(_, to)| *to > MAX_GAP).collect();
                prop_assert_eq!(copied, expected);
                prop_assert!(covered_remote.len() <= remote.len());
            } else {
                prop_assert!(remote.windows(2).all(|pair| pair[1].address - pair[0].address - pair[0].length >= MAX_GAP));
            }
        }

        #[test]
        fn subranges_are_found_at_any_offset(lengths in prop::collection::vec(0..20_u64, 0..10), from in 0..100_u64, length in 0..100_u64) {
            let list: Vec<Iov> = lengths.iter().enumerate().map(|(number, length)| iov(1000 * number as u64, *length)).collect();
            let all = bytes(&list);
            let from = from.min(all.len() as u64);
            let length = length.min(all.len() as u64 - from);
            prop_assert_eq!(&bytes(&subranges(&list, from, length))[..], &all[from as usize..(from + length) as usize]);
        }
    }
}
