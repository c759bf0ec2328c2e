//! [`Ring`]: a fixed number of records that writers take turns in, in the ledger.
//!
//! The flight recorder is one of many records; statistics are rings of two, so that a writer that is killed in the middle
//! of one leaves the one before.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_sync::sequence::{SequenceLock, stamp_of};

use crate::protocol;

/// Words before the first record: see [`Shape`] and the constants below.
pub(crate) const RING_HEADER: usize = 16;
/// The most records that a reader believes.
const MOST_RECORDS: usize = 1 << 16;
/// Word of the header: how many tickets were drawn. In a cache line of its own with the next.
const HEAD: usize = 8;
/// Word of the header: how many records were given up, because another writer was in the way.
const LOST: usize = 9;

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub records: usize,
    /// Words per record; the first is its stamp.
    pub words: usize,
}

impl Shape {
    /// Words that a ring takes, rounded up to whole cache lines.
    pub(crate) const fn size(self) -> usize {
        (RING_HEADER + self.records * self.words).next_multiple_of(8)
    }
}

/// The writers' side.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'m> {
    words: &'m [AtomicU64],
    shape: Shape,
}

impl<'m> Ring<'m> {
    /// A ring in `words`, which are `shape.size()` zeros or were a ring of this shape before.
    pub(crate) fn new(words: &'m [AtomicU64], shape: Shape) -> Option<Self> {
        (words.len() >= shape.size() && shape.records > 0 && shape.words > 1).then_some(Self { words, shape })
    }

    /// Writes what a reader checks first. Before anybody reads.
    pub(crate) fn write_header(self) {
        self.words[0].store(self.shape.words as u64, Ordering::Relaxed);
        self.words[1].store(self.shape.records as u64, Ordering::Relaxed);
    }

    /// Writes the next record; `fill` gets its words but for the stamp, which hold what they held before. Wait-free. A
    /// record that another writer is in is not waited for: it is counted as lost.
    pub(crate) fn write(self, fill: impl FnOnce(&'m [AtomicU64])) {
        let ticket = self.words[HEAD].fetch_add(1, Ordering::Relaxed);
        let records = self.shape.records as u64;
        // (A division costs as much as the rest.)
        let record = if records.is_power_of_two() { ticket & (records - 1) } else { ticket % records };
        let place = RING_HEADER + record as usize * self.shape.words;
        let (stamp, fields) = (&self.words[place], &self.words[place + 1..place + self.shape.words]);
        if !SequenceLock::of(stamp).record(ticket, || fill(fields)) {
            self.words[LOST].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Ring<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ring").field(&self.shape).finish()
    }
}

/// What a reader found in a ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingContent {
    /// Tickets and the fields that came with them (without the stamp), the oldest first.
    pub records: Vec<(u64, Vec<u64>)>,
    /// How many records were written, or tried, in the life of the ring.
    pub written: u64,
    /// How many of them were lost because two writers met in one record.
    pub lost: u64,
    /// Records that were just being written, or written over, as they were read.
    pub torn: usize,
}

impl RingContent {
    /// Reads a ring of records of `words` words out of somebody else's memory: `read(from, count)` yields `count` words, from
    /// word `from` of the ring on. Nothing is believed: `None` if there is no such ring.
    pub(crate) fn read(words: usize, read: impl Fn(usize, usize) -> Option<Vec<u64>>) -> Option<Self> {
        let header = read(0, RING_HEADER)?;
        let records =
            usize::try_from(header[1]).ok().filter(|records| (1..=MOST_RECORDS).contains(records))?;
        if header[0] != words as u64 || words < 2 {
            return None;
        }
        let all = || read(RING_HEADER, records * words);
        let (before, content, after) = protocol::settled(all, all, core::sync::atomic::fence);
        let (before, content, after) = (before?, content?, after?);
        let mut found = Self { written: header[HEAD], lost: header[LOST], ..Self::default() };
        for (place, fields) in content.chunks_exact(words).enumerate() {
            let (stamp, again) = (before[place * words], after[place * words]);
            if (stamp, again) == (0, 0) {
                continue;
            }
            let ticket = (stamp / 2).wrapping_sub(1);
            let fits = ticket % records as u64 == place as u64 && stamp_of(ticket) == stamp;
            if stamp == again && fits {
                found.records.push((ticket, fields[1..].to_vec()));
            } else {
                found.torn += 1;
            }
        }
        found.records.sort_unstable_by_key(|&(ticket, _)| ticket);
        Some(found)
    }

    /// The record that was written last.
    pub(crate) fn last(self) -> Option<Vec<u64>> {
        self.records.into_iter().next_back().map(|(_, fields)| fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { records: 4, words: 3 };

    fn memory(shape: Shape) -> Vec<AtomicU64> {
        (0..shape.size()).map(|_| AtomicU64::new(0)).collect()
    }

    fn read(words: &[AtomicU64], shape: Shape) -> Option<RingContent> {
        RingContent::read(shape.words, |from, count| {
            let part = words.get(from..from.checked_add(count)?)?;
            Some(part.iter().map(|word| word.load(Ordering::Relaxed)).collect())
        })
    }

    fn push(ring: Ring<'_>, value: u64) {
        ring.write(|fields| fields.iter().for_each(|field| field.store(value, Ordering::Relaxed)));
    }

    #[test]
    fn the_last_ones_stay_in_order() {
        let memory = memory(SHAPE);
        assert_eq!(read(&memory, SHAPE), None, "nobody made it");
        let ring = Ring::new(&memory, SHAPE).unwrap();
        ring.write_header();
        assert_eq!(read(&memory, SHAPE).unwrap(), RingContent::default());
        for value in 0..3 {
            push(ring, value);
        }
        let found = read(&memory, SHAPE).unwrap();
        assert_eq!(found.records, [(0, vec![0, 0]), (1, vec![1, 1]), (2, vec![2, 2])]);
        for value in 3..11 {
            push(ring, value);
        }
        let found = read(&memory, SHAPE).unwrap();
        assert_eq!(found.records.iter().map(|&(ticket, _)| ticket).collect::<Vec<_>>(), [7, 8, 9, 10]);
        assert_eq!((found.written, found.lost, found.torn), (11, 0, 0));
        assert_eq!(found.last(), Some(vec![10, 10]));
        assert!(Ring::new(&memory[1..], SHAPE).is_none());
    }

    /// A writer that stopped inside a record (killed, or not running for a whole round) loses that one, for itself and for
    /// those who come by, and nothing else.
    #[test]
    fn a_writer_that_never_comes_back() {
        let memory = memory(SHAPE);
        let ring = Ring::new(&memory, SHAPE).unwrap();
        ring.write_header();
        push(ring, 0);
        ring.write(|fields| {
            fields[0].store(1, Ordering::Relaxed);
            for value in 2..11 {
                push(ring, value);
            }
            let found = read(&memory, SHAPE).unwrap();
            assert_eq!(found.records.iter().map(|&(ticket, _)| ticket).collect::<Vec<_>>(), [7, 8, 10]);
            assert_eq!((found.written, found.lost, found.torn), (11, 2, 1));
            fields[1].store(1, Ordering::Relaxed);
        });
        let found = read(&memory, SHAPE).unwrap();
        assert_eq!(found.records[0], (1, vec![1, 1]), "it came back and finished");
        push(ring, 11);
        push(ring, 12);
        push(ring, 13);
        assert_eq!(read(&memory, SHAPE).unwrap().records[2], (12, vec![12, 12]));
        assert_eq!(read(&memory, SHAPE).unwrap().records[3], (13, vec![13, 13]));
    }

    #[test]
    fn threads_write_and_a_reader_sees_whole_records() {
        let shape = Shape { records: 8, words: 6 };
        let memory = memory(shape);
        let ring = Ring::new(&memory, shape).unwrap();
        ring.write_header();
        let stop = AtomicBool::new(false);
        let mut seen = 0;
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let stop = &stop;
                scope.spawn(move || {
                    let mut value = thread;
                    while !stop.load(Ordering::Relaxed) {
                        push(ring, value);
                        value += 3;
                    }
                });
            }
            while seen < 50_000 {
                let found = read(&memory, shape).unwrap();
                for (_, fields) in &found.records {
                    assert!(fields.iter().all(|field| *field == fields[0]), "torn: {fields:?}");
                }
                seen += found.records.len();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    proptest! {
        #[test]
        fn any_words_are_a_ring_or_none(words in proptest::collection::vec(
            prop_oneof![0_u64..8, any::<u64>(), Just(u64::MAX), Just(1 << 16)], 0..80), size in 0_usize..8) {
            let found = RingContent::read(size, |from, count| {
                words.get(from..from.checked_add(count)?).map(<[u64]>::to_vec)
            });
            if let Some(found) = found {
                prop_assert!(found.records.len() * size <= words.len());
                prop_assert!(found.records.windows(2).all(|pair| pair[0].0 < pair[1].0));
            }
        }
    }
}
