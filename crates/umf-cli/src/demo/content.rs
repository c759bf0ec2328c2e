//! What the blocks of the demo hold: bytes that say whose they are, at every place different.

use std::ops::Range;

/// Bytes that are written and checked at a time.
const CHUNK: usize = 64 << 10;
const HEADER: usize = 16;

/// What one writer puts into (a part of) one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    header: [u8; HEADER],
    seed: u64,
}

impl Content {
    /// What the owner of a block fills it with.
    pub(super) fn of_owner(run: u64, owner: u32, index: u32) -> Content {
        Content::new(run, owner, index, u32::MAX)
    }

    /// What a reader answers in it.
    pub(super) fn of_reader(run: u64, owner: u32, index: u32, reader: u32) -> Content {
        Content::new(run, owner, index, reader)
    }

    fn new(run: u64, owner: u32, index: u32, writer: u32) -> Content {
        let mut header = [0; HEADER];
        for (place, word) in header.chunks_exact_mut(4).zip([owner, index, writer, run as u32]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let block = u64::from(owner) << 32 | u64::from(index);
        Content { header, seed: mix(mix(run ^ block) ^ u64::from(writer)) }
    }

    /// The bytes from `offset` on, a multiple of 8.
    fn fill(&self, offset: usize, bytes: &mut [u8]) {
        for (number, word) in bytes.chunks_mut(8).enumerate() {
            let random = mix(self.seed.wrapping_add((offset / 8 + number) as u64)).to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
        if offset == 0 {
            let length = bytes.len().min(HEADER);
            bytes[..length].copy_from_slice(&self.header[..length]);
        }
    }

    /// Puts the content at `place` of a block, with `write(offset, bytes)`.
    pub(super) fn put<E>(
        &self,
        place: Range<usize>,
        mut write: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut expected = vec![0; CHUNK.min(place.len())];
        for start in place.clone().step_by(CHUNK) {
            let chunk = &mut expected[..CHUNK.min(place.end - start)];
            self.fill(start - place.start, chunk);
            write(start, chunk)?;
        }
        Ok(())
    }

    /// Compares what `read(offset, bytes)` finds at `place` of a block; the offset of the first byte that is different.
    pub(super) fn check<E>(
        &self,
        place: Range<usize>,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        let mut expected = vec![0; CHUNK.min(place.len())];
        let mut found = expected.clone();
        for start in place.clone().step_by(CHUNK) {
            let length = CHUNK.min(place.end - start);
            let (expected, found) = (&mut expected[..length], &mut found[..length]);
            self.fill(start - place.start, expected);
            read(start, found)?;
            if expected != found {
                let same = expected.iter().zip(&*found).take_while(|(one, other)| one == other).count();
                return Ok(Some(start + same));
            }
        }
        Ok(None)
    }
}

/// The finaliser of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(content: Content, memory: &mut [u8], place: Range<usize>) {
        let write = |offset: usize, bytes: &[u8]| {
            memory[offset..offset + bytes.len()].copy_from_slice(bytes);
            Ok::<(), ()>(())
        };
        content.put(place, write).unwrap();
    }

    fn check(content: Content, memory: &[u8], place: Range<usize>) -> Option<usize> {
        let read = |offset: usize, bytes: &mut [u8]| {
            bytes.copy_from_slice(&memory[offset..offset + bytes.len()]);
            Ok::<(), ()>(())
        };
        content.check(place, read).unwrap()
    }

    #[test]
    fn a_changed_byte_is_found_wherever_it_is() {
        let content = Content::of_owner(7, 1, 2);
        for size in [1, 15, 16, 17, CHUNK, CHUNK + 1, 2 * CHUNK + 13] {
            let mut memory = vec![0; size + 5];
            put(content, &mut memory, 5..size + 5);
            assert_eq!(check(content, &memory, 5..size + 5), None);
            for place in [5, 5 + size / 2, size + 4] {
                memory[place] ^= 1;
                assert_eq!(check(content, &memory, 5..size + 5), Some(place));
                memory[place] ^= 1;
            }
        }
    }

    #[test]
    fn writers_and_blocks_differ() {
        let mut memory = vec![0; 64];
        put(Content::of_owner(7, 1, 2), &mut memory, 0..64);
        for other in [
            Content::of_owner(7, 1, 3),
            Content::of_owner(7, 2, 2),
            Content::of_owner(8, 1, 2),
            Content::of_reader(7, 1, 2, 0),
        ] {
            assert!(check(other, &memory, 0..64).is_some());
        }
    }
}
