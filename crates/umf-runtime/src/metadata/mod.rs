//! Memory for metadata: mappings of our own, never the global allocator (a pool may *be* that).
//!
//! [`umf_sync::table::Table`] hands out the indices of [`umf_sync::chunks::Chunks`]. It never gives
//! memory back: what a lock-free reader found under an index stays readable, and is at worst a
//! record of something newer, which the reader notices by a generation. [`RingSlot`] is what a ring
//! of events is made of. [`Mapped`] is for ordinary collections.

mod mapped;
mod ring;

pub use mapped::Mapped;
pub use ring::{RingSlot, SLOT_WORDS};
