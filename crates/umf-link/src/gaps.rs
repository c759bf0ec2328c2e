//! Lists with gaps, read by the kernel with fewer entries: it costs more to begin an entry than to read a small gap.

use crate::sys::{self, Direction, Iov};

/// Gaps below this are read too. All of such a gap lies in pages of the entries beside it, so that what could be read without it
/// can be read with it.
const MOST: u64 = 4096;

/// Reads the `remote` list of process `pid` into the `local` one, which has as many bytes.
///
/// # Errors
/// # Safety
/// As [`sys::across`].
pub(crate) unsafe fn read(pid: i32, local: &[Iov], remote: &[Iov]) -> sys::Result<()> {
    if remote.len() < 2 {
        // SAFETY: by this function's contract.
        return unsafe { sys::across(pid, Direction::Read, local, remote) };
    }
    let mut waste = [0_u8; MOST as usize];
    let waste = Iov { address: waste.as_mut_ptr().expose_provenance() as u64, length: MOST };
    match covered(local, remote, waste) {
        // SAFETY: by this function's contract; `waste` is memory of this function, which lives until it returns.
        Some((local, remote)) => unsafe { sys::across(pid, Direction::Read, &local, &remote) },
        // SAFETY: by this function's contract.
        None => unsafe { sys::across(pid, Direction::Read, local, remote) },
    }
}

/// Both lists with small gaps between remote entries read as well, into `waste`. `None` if there are none.
fn covered(local: &[Iov], remote: &[Iov], waste: Iov) -> Option<(Vec<Iov>, Vec<Iov>)> {
    let gap = |pair: &[Iov]| {
        let gap = pair[1].address.checked_sub(pair[0].address.checked_add(pair[0].length)?)?;
        (gap < MOST).then_some(gap)
    };
    if !remote.windows(2).any(|pair| gap(pair).is_some()) {
        return None;
    }
    let mut theirs: Vec<Iov> = Vec::with_capacity(remote.len());
    let mut mine: Vec<Iov> = Vec::with_capacity(local.len() + remote.len());
    let (mut entries, mut offset) = (local.iter(), 0);
    let mut entry = entries.next();
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
        // The local memory for this entry.
        let mut left = next.length;
        while left > 0
            && let Some(now) = entry
        {
            let length = (now.length - offset).min(left);
            if length > 0 {
                mine.push(Iov { address: now.address + offset, length });
            }
            left -= length;
            offset += length;
            if offset == now.length {
                entry = entries.next();
                offset = 0;
            }
        }
    }
    Some((mine, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WASTE: Iov = Iov { address: 1, length: MOST };

    fn iov(address: u64, length: u64) -> Iov {
        Iov { address, length }
    }

    #[test]
    fn small_gaps_are_covered_and_large_ones_are_not() {
        let remote = [iov(1000, 10), iov(1010, 10), iov(1100, 5), iov(1105 + MOST, 5), iov(900, 3)];
        let local = [iov(50_000, 33)];
        let (mine, theirs) = covered(&local, &remote, WASTE).unwrap();
        assert_eq!(theirs, [iov(1000, 105), iov(1105 + MOST, 5), iov(900, 3)]);
        let expected =
            [iov(50_000, 10), iov(50_010, 10), iov(1, 80), iov(50_020, 5), iov(50_025, 5), iov(50_030, 3)];
        assert_eq!(mine, expected);
        assert_eq!(covered(&local, &[iov(0, 1), iov(1 + MOST, 32)], WASTE), None);
    }

    proptest! {
        /// Byte for byte, what goes into the local list comes from the same address as without the gaps.
        #[test]
        fn every_byte_goes_where_it_went(
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
            let bytes = |list: &[Iov]| -> Vec<u64> {
                list.iter().flat_map(|entry| entry.address..entry.address + entry.length).collect()
            };
            let expected: Vec<(u64, u64)> = bytes(&remote).into_iter().zip(bytes(&local)).collect();
            if let Some((mine, theirs)) = covered(&local, &remote, WASTE) {
                let (theirs_bytes, mine_bytes) = (bytes(&theirs), bytes(&mine));
                prop_assert_eq!(theirs_bytes.len(), mine_bytes.len());
                let got: Vec<(u64, u64)> =
                    theirs_bytes.into_iter().zip(mine_bytes).filter(|(_, to)| *to > MOST).collect();
                prop_assert_eq!(got, expected);
                prop_assert!(theirs.len() <= remote.len());
            } else {
                prop_assert!(remote.windows(2).all(|pair| pair[1].address - pair[0].address - pair[0].length >= MOST));
            }
        }
    }
}
