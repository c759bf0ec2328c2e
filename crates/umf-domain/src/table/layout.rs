//! Where everything lies in a domain's table. The table of `docs/domain.md`.

use core::sync::atomic::{AtomicU32, AtomicU64};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"UMFDOMN1");
pub(super) const VERSION: u32 = 1;

/// How many processes a domain can have.
pub(crate) const PLACES: u16 = 1024;
/// How many objects a domain can have.
pub(crate) const MAX_SLOTS: u32 = 1 << 16;

const PLACE_WORDS: usize = PLACES as usize / 64;
const SLOT_WORDS: usize = MAX_SLOTS as usize / 64;

pub(super) const HEADER_SIZE: usize = size_of::<Header>();
pub(super) const SLOT_SIZE: usize = size_of::<Slot>();

#[derive(Debug)]
#[repr(C)]
pub(super) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub slot_size: AtomicU32,
    pub capacity: AtomicU32,
    pub tag: AtomicU32,
    /// The first [`crate::number::Reuse`] of every slot.
    pub incarnation: AtomicU64,
    /// Slots below this one have their pages.
    pub reserved_slots: AtomicU32,
    _reserved: [AtomicU32; 23],
    /// One bit for each place that was taken and not reclaimed yet.
    pub occupied: [AtomicU64; PLACE_WORDS],
    _rest_of_page: [AtomicU64; 480],
    /// One bit for each slot that has an object.
    pub used: [AtomicU64; SLOT_WORDS],
    pub places: [Place; PLACES as usize],
}

const _: () = assert!(core::mem::offset_of!(Header, used) == 4096);
const _: () = assert!(core::mem::offset_of!(Header, places) == 12288);
const _: () = assert!(HEADER_SIZE == 45056);
const _: () = assert!(SLOT_SIZE == 168);

/// One participant.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Place {
    /// Random: another process in the same place has another one.
    pub nonce: [AtomicU64; 2],
    _reserved: [AtomicU64; 2],
}

/// One object.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    /// Of its number; 0 if the slot was never used.
    pub reuse: AtomicU64,
    pub size: AtomicU64,
    pub device: AtomicU64,
    pub inode: AtomicU64,
    pub kind: AtomicU32,
    _reserved: AtomicU32,
    /// One bit for each place that is registered.
    pub registrants: [AtomicU64; PLACE_WORDS],
}
