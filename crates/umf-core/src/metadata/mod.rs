//! Memory for metadata: mappings of our own, never the global allocator (a pool may *be* that).
//!
//! [`Chunks`] is an array that grows without moving; [`Table`] adds the handing out of its indices.
//! Neither ever gives memory back: what a lock-free reader found under an index stays readable, and
//! is at worst a record of something newer, which the reader notices by a generation. [`Slot`] is what a ring of events is made
//! of. [`Mapped`] is for ordinary collections.

mod chunks;
mod mapped;
mod ring;
mod table;
mod wiped;

pub use chunks::{Chunks, Zeroed};
pub use mapped::Mapped;
pub use ring::{SLOT_WORDS, Slot};
pub use table::Table;
pub use wiped::Wiped;
