//! Memory that a command works on, as the device's threads see it.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::Backing;

/// Bytes in one piece, kept as long as the command that works on them.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where it begins.
    pub start: NonNull<u8>,
    /// Its size in bytes.
    pub size: usize,
    /// Absent for memory of the application, which has to keep it.
    pub _backing: Option<Arc<Backing>>,
}

/// A range of addresses, in the pieces that it consists of.
#[derive(Clone, Debug, Default)]
pub struct Span {
    pieces: Vec<Piece>,
    size: usize,
}

// SAFETY: pieces of mappings that live as long as the span, or of memory that the application gave to a command: it is used
// by whatever thread executes that.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Piece) {
        self.size += piece.size;
        self.pieces.push(piece);
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The longest piece from `offset` on, of at most `size` bytes; nothing at the end.
    fn piece(&self, mut offset: usize, size: usize) -> Option<(*mut u8, usize)> {
        for piece in &self.pieces {
            if offset < piece.size {
                // SAFETY: within the piece.
                let start = unsafe { piece.start.as_ptr().add(offset) };
                return Some((start, size.min(piece.size - offset)));
            }
            offset -= piece.size;
        }
        None
    }

    /// Copies `size` bytes, as far as both have them.
    pub fn copy(&self, offset: usize, from: &Self, from_offset: usize, size: usize) {
        let mut done = 0;
        while done < size {
            let left = size - done;
            let Some((source, readable)) = from.piece(from_offset + done, left) else { return };
            let Some((target, part)) = self.piece(offset + done, readable) else { return };
            // SAFETY: both pieces are mapped as long as the spans live; whoever else uses that memory meanwhile has a race in
            // its own program. They may overlap.
            unsafe { source.copy_to(target, part) };
            done += part;
        }
    }

    /// Repeats a pattern over all of it.
    pub fn fill(&self, pattern: &[u8]) {
        if let [byte] = *pattern {
            for piece in &self.pieces {
                // SAFETY: the piece is mapped as long as the span lives.
                unsafe { piece.start.write_bytes(byte, piece.size) };
            }
            return;
        }
        let mut offset = 0;
        while offset < self.size && !pattern.is_empty() {
            let part = pattern.len().min(self.size - offset);
            self.write(offset, &pattern[..part]);
            offset += part;
        }
    }

    /// Writes bytes at an offset, as far as there is room.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while let Some((target, part)) =
            self.piece(offset + done, bytes.len() - done).filter(|(_, part)| *part > 0)
        {
            // SAFETY: mapped as long as the span lives, and no Rust object lies there.
            unsafe { bytes[done..].as_ptr().copy_to(target, part) };
            done += part;
        }
    }
}
