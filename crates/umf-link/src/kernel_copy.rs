//! Copies between the memory of two processes by the kernel (`process_vm_readv(2)`, Linux 3.2), and
//! the lists of ranges that it takes.

use rustix::io::Errno;

use crate::sys::Result;

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

/// Most entries of a list in one call (`IOV_MAX`).
const MOST: usize = 1024;
/// Gaps below this are read too: to begin an entry costs the kernel more than to read a small gap.
/// Such a gap lies in pages of the entries beside it, so that it is readable where they are.
const GAP: u64 = 4096;

/// Returns an entry without its first bytes, as the kernel takes it.
fn iovec(entry: &Iov, skipped: u64) -> libc::iovec {
    libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut((entry.address + skipped) as usize),
        iov_len: (entry.length - skipped) as usize,
    }
}

/// A place in a list of ranges.
#[derive(Default)]
struct Progress {
    index: usize,
    offset: u64,
}

impl Progress {
    /// Returns the next entries, as many as one call takes.
    fn window(&self, list: &[Iov]) -> Vec<libc::iovec> {
        let skipped = |number| if number == 0 { self.offset } else { 0 };
        let rest = list[self.index..].iter().take(MOST).enumerate();
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
/// bytes, and no entry wraps the address space. What was copied before an error stays copied.
///
/// # Errors
/// Those of the call: `EPERM` where ptrace rights are lacking, `ESRCH`, `EFAULT` for memory that is
/// not mapped or that the kernel cannot copy (a mapped dma-buf).
///
/// # Safety
/// For [`Direction::Read`] the caller may write `local`; otherwise it may read it. The pid is that
/// of the intended process.
pub(crate) unsafe fn copy(pid: i32, direction: Direction, local: &[Iov], remote: &[Iov]) -> Result<()> {
    let (mut mine, mut theirs) = (Progress::default(), Progress::default());
    while mine.index < local.len() && theirs.index < remote.len() {
        let count = if let ([one], [other]) = (local, remote) {
            let (one, other) = (iovec(one, mine.offset), iovec(other, theirs.offset));
            // SAFETY: by this function's contract.
            unsafe { once(pid, direction, &[one], &[other]) }?
        } else {
            // SAFETY: by this function's contract.
            unsafe { once(pid, direction, &mine.window(local), &theirs.window(remote)) }?
        };
        mine.advance(local, count);
        theirs.advance(remote, count);
    }
    Ok(())
}

/// Reads like [`copy`], with small gaps between `remote` entries read into waste.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`] for [`Direction::Read`].
pub(crate) unsafe fn read_with_gaps(pid: i32, local: &[Iov], remote: &[Iov]) -> Result<()> {
    let mut waste = [0_u8; GAP as usize];
    let waste = Iov { address: waste.as_mut_ptr().expose_provenance() as u64, length: GAP };
    match cover_gaps(local, remote, waste) {
        // SAFETY: by this function's contract; `waste` is memory of this function.
        Some((local, remote)) => unsafe { copy(pid, Direction::Read, &local, &remote) },
        // SAFETY: by this function's contract.
        None => unsafe { copy(pid, Direction::Read, local, remote) },
    }
}

/// Calls the kernel once, and again after a signal. Returns the number of bytes, at least one.
///
/// # Safety
/// As [`copy`].
unsafe fn once(pid: i32, direction: Direction, local: &[libc::iovec], remote: &[libc::iovec]) -> Result<u64> {
    let call = match direction {
        Direction::Read => libc::process_vm_readv,
        Direction::Write => libc::process_vm_writev,
    };
    let (mine, theirs) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    loop {
        // SAFETY: by this function's contract for local memory; the kernel checks the rest. Both
        // arrays are valid and have at most IOV_MAX entries.
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

/// Returns both lists with small gaps between remote entries read into `waste`; `None` if there are
/// none.
fn cover_gaps(local: &[Iov], remote: &[Iov], waste: Iov) -> Option<(Vec<Iov>, Vec<Iov>)> {
    let gap = |pair: &[Iov]| {
        let gap = pair[1].address.checked_sub(pair[0].address.checked_add(pair[0].length)?)?;
        (gap < GAP).then_some(gap)
    };
    if !remote.windows(2).any(|pair| gap(pair).is_some()) {
        return None;
    }
    let mut theirs: Vec<Iov> = Vec::with_capacity(remote.len());
    let mut mine: Vec<Iov> = Vec::with_capacity(local.len() + remote.len());
    let mut at = 0;
    for (number, &next) in remote.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| gap(&[remote[before], next]));
        match (before, theirs.last_mut()) {
            (Some(gap), Some(last)) => {
                last.length += gap + next.length;
                if gap > 0 {
                    mine.push(Iov { address: waste.address, length: gap });
                }
            }
            _ => theirs.push(next),
        }
        mine.extend(part_of(local, at, next.length));
        at += next.length;
    }
    Some((mine, theirs))
}

/// Returns the ranges that bytes `from` to `from + length` of a list are.
pub(crate) fn part_of(list: &[Iov], from: u64, length: u64) -> Vec<Iov> {
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

    const WASTE: Iov = Iov { address: 1, length: GAP };

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
        let local: Vec<Iov> = to.chunks_mut(11).map(|part| of(part)).collect();
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
        let remote = [iov(1000, 10), iov(1010, 10), iov(1100, 5), iov(1105 + GAP, 5), iov(900, 3)];
        let local = [iov(50_000, 33)];
        let (mine, theirs) = cover_gaps(&local, &remote, WASTE).unwrap();
        assert_eq!(theirs, [iov(1000, 105), iov(1105 + GAP, 5), iov(900, 3)]);
        let expected =
            [iov(50_000, 10), iov(50_010, 10), iov(1, 80), iov(50_020, 5), iov(50_025, 5), iov(50_030, 3)];
        assert_eq!(mine, expected);
        assert_eq!(cover_gaps(&local, &[iov(0, 1), iov(1 + GAP, 32)], WASTE), None);
    }

    proptest! {
        /// Byte for byte, what goes into the local list comes from the same address as without
        /// gaps.
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
            if let Some((mine, theirs)) = cover_gaps(&local, &remote, WASTE) {
                let (theirs_bytes, mine_bytes) = (bytes(&theirs), bytes(&mine));
                prop_assert_eq!(theirs_bytes.len(), mine_bytes.len());
                let got: Vec<(u64, u64)> =
                    theirs_bytes.into_iter().zip(mine_bytes).filter(|(_, to)| *to > GAP).collect();
                prop_assert_eq!(got, expected);
                prop_assert!(theirs.len() <= remote.len());
            } else {
                prop_assert!(remote.windows(2).all(|pair| pair[1].address - pair[0].address - pair[0].length >= GAP));
            }
        }

        #[test]
        fn part_of_list_is_found_at_any_offset(lengths in prop::collection::vec(0..20_u64, 0..10), from in 0..100_u64, length in 0..100_u64) {
            let list: Vec<Iov> = lengths.iter().enumerate().map(|(number, length)| iov(1000 * number as u64, *length)).collect();
            let all = bytes(&list);
            let from = from.min(all.len() as u64);
            let length = length.min(all.len() as u64 - from);
            prop_assert_eq!(&bytes(&part_of(&list, from, length))[..], &all[from as usize..(from + length) as usize]);
        }
    }
}
