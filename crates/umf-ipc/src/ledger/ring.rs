//! [`Ring`]: a ring of records in the ledger, with sequence locks.
//!
//! Statistics are rings of two records: a writer that is killed while it writes one leaves the
//! other one readable.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_sync::sequence::{SequenceLock, stamp_of};

use crate::protocol;

/// Words before the first record: see [`RingShape`] and the constants below.
pub(crate) const RING_HEADER: usize = 16;
/// Word of the header: the number of tickets that were drawn. In a cache line of its own.
const HEAD: usize = 8;

/// Size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    pub records: usize,
    /// Words per record. The first one is its stamp.
    pub words: usize,
}

impl RingShape {
    /// Returns the size of a ring in words, rounded up to whole cache lines.
    pub(crate) const fn size(self) -> usize {
        (RING_HEADER + self.records * self.words).next_multiple_of(8)
    }
}

/// The writers' side.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'m> {
    words: &'m [AtomicU64],
    shape: RingShape,
}

impl<'m> Ring<'m> {
    /// Returns the ring in `words`: `shape.size()` words that are zero or were a ring of this shape
    /// before.
    pub(crate) fn new(words: &'m [AtomicU64], shape: RingShape) -> Option<Self> {
        (words.len() >= shape.size() && shape.records > 0 && shape.words > 1).then_some(Self { words, shape })
    }

    /// Writes the words that readers check first. Called before another process can read the ring.
    pub(crate) fn write_header(self) {
        self.words[0].store(self.shape.words as u64, Ordering::Relaxed);
        self.words[1].store(self.shape.records as u64, Ordering::Relaxed);
    }

    /// Writes the next record. `fill` receives its words after the stamp, with their previous
    /// contents. Wait-free: if another thread writes that record, nothing is written.
    pub(crate) fn write(self, fill: impl FnOnce(&'m [AtomicU64])) {
        let ticket = self.words[HEAD].fetch_add(1, Ordering::Relaxed);
        let records = self.shape.records as u64;
        // A division costs as much as the rest of the function.
        let record = if records.is_power_of_two() { ticket & (records - 1) } else { ticket % records };
        let start = RING_HEADER + record as usize * self.shape.words;
        let (stamp, fields) = (&self.words[start], &self.words[start + 1..start + self.shape.words]);
        SequenceLock::of(stamp).record(ticket, || fill(fields));
    }
}

impl fmt::Debug for Ring<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ring").field(&self.shape).finish()
    }
}

/// Reads the last record of another process's ring: its ticket, and its fields without the stamp.
/// `read(from, count)` returns `count` words from word `from` of the ring on. Returns `None` if the
/// ring has another shape, or no consistent record.
pub(crate) fn read_last(
    shape: RingShape,
    read: impl Fn(usize, usize) -> Option<Vec<u64>>,
) -> Option<(u64, Vec<u64>)> {
    let RingShape { records, words } = shape;
    let header = read(0, RING_HEADER)?;
    if header[..2] != [words as u64, records as u64] {
        return None;
    }
    let all = || read(RING_HEADER, records * words);
    let (before, content, after) = protocol::read_stable(all, all, core::sync::atomic::fence);
    let (before, content, after) = (before?, content?, after?);
    let consistent = content.chunks_exact(words).enumerate().filter_map(|(record, fields)| {
        let (stamp, again) = (before[record * words], after[record * words]);
        let ticket = (stamp / 2).checked_sub(1)?;
        let fits = ticket % records as u64 == record as u64 && stamp_of(ticket) == stamp;
        (stamp == again && fits).then(|| (ticket, fields[1..].to_vec()))
    });
    consistent.max_by_key(|&(ticket, _)| ticket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use proptest::prelude::*;

    const SHAPE: RingShape = RingShape { records: 4, words: 3 };

    fn memory(shape: RingShape) -> Vec<AtomicU64> {
        (0..shape.size()).map(|_| AtomicU64::new(0)).collect()
    }

    fn last(words: &[AtomicU64], shape: RingShape) -> Option<(u64, Vec<u64>)> {
        read_last(shape, |from, count| {
            let part = words.get(from..from.checked_add(count)?)?;
            Some(part.iter().map(|word| word.load(Ordering::Relaxed)).collect())
        })
    }

    fn push(ring: Ring<'_>, value: u64) {
        ring.write(|fields| fields.iter().for_each(|field| field.store(value, Ordering::Relaxed)));
    }

    #[test]
    fn read_last_returns_last_record() {
        let memory = memory(SHAPE);
        let ring = Ring::new(&memory, SHAPE).unwrap();
        push(ring, 0);
        assert_eq!(last(&memory, SHAPE), None, "without a header");
        ring.write_header();
        for value in 1..11 {
            push(ring, value);
            assert_eq!(last(&memory, SHAPE), Some((value, vec![value, value])));
        }
        assert_eq!(last(&memory, RingShape { records: 3, ..SHAPE }), None, "of another shape");
        assert!(Ring::new(&memory[1..], SHAPE).is_none());
    }

    /// A writer that stops inside a record (killed, or descheduled for a whole round) loses that
    /// record only.
    #[test]
    fn stopped_writer_loses_one_record_only() {
        let memory = memory(SHAPE);
        let ring = Ring::new(&memory, SHAPE).unwrap();
        ring.write_header();
        ring.write(|fields| {
            fields[0].store(0, Ordering::Relaxed);
            assert_eq!(last(&memory, SHAPE), None);
            for value in 1..9 {
                push(ring, value);
                let before = value - u64::from(value % 4 == 0);
                assert_eq!(last(&memory, SHAPE), Some((before, vec![before; 2])));
            }
        });
        push(ring, 9);
        assert_eq!(last(&memory, SHAPE), Some((9, vec![9, 9])));
        for value in 10..13 {
            push(ring, value);
        }
        assert_eq!(
            last(&memory, SHAPE),
            Some((12, vec![12, 12])),
            "its record is used again after it continued"
        );
    }

    #[test]
    fn concurrent_record_reads_are_consistent() {
        let shape = RingShape { records: 8, words: 6 };
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
                let Some((_, fields)) = last(&memory, shape) else { continue };
                assert!(fields.iter().all(|field| *field == fields[0]), "torn: {fields:?}");
                seen += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    proptest! {
        #[test]
        fn any_words_are_a_ring_or_none(words in proptest::collection::vec(
            prop_oneof![0_u64..8, any::<u64>(), Just(u64::MAX), Just(1 << 16)], 0..80)) {
            let found = read_last(SHAPE, |from, count| {
                words.get(from..from.checked_add(count)?).map(<[u64]>::to_vec)
            });
            if let Some((_, fields)) = found {
                prop_assert_eq!(fields.len(), SHAPE.words - 1);
            }
        }
    }
}
