//! The compact form of states: 128 bits. Symmetric states have the same bits.

use super::{FreeStage, IMPORTERS, Importer, Lock, MAX_ROWS, MAX_THREADS, OtherScan, Row, Stage, State};

const STAGES: [Stage; 6] =
    [Stage::Idle, Stage::SetBit, Stage::Add, Stage::Load, Stage::Open, Stage::Subtract];

const ROW_STAGES: [Row; 6] =
    [Row::Foreign, Row::Locked, Row::Cleared, Row::Ready, Row::Closing, Row::Unlocked];

const FREES: [FreeStage; 14] = [
    FreeStage::Live,
    FreeStage::LoadHeight,
    FreeStage::LoadBitmap,
    FreeStage::Scan,
    FreeStage::QueryLock,
    FreeStage::Lock,
    FreeStage::Reap,
    FreeStage::Unlock,
    FreeStage::ClearBitmap,
    FreeStage::Publish,
    FreeStage::RetireLate,
    FreeStage::RetireAfterBitmap,
    FreeStage::LoadHeightLate,
    FreeStage::ClearBitmapLate,
];

/// Bits of a packed importer.
const IMPORTER_BITS: usize = 6 * MAX_THREADS + 5 * MAX_ROWS;

/// A stack of small numbers.
#[derive(Clone, Copy, Default)]
struct Bits {
    bits: u128,
}

impl Bits {
    fn put(&mut self, value: u8, width: usize) {
        debug_assert!(u32::from(value) < 1 << width);
        self.bits = self.bits << width | u128::from(value);
    }

    fn take(&mut self, width: usize) -> u8 {
        let value = self.bits as u8 & ((1 << width) - 1);
        self.bits >>= width;
        value
    }
}

/// Packs a state. If the importers are `symmetric`, both their orders give the same bits.
pub(super) fn pack(state: &State, symmetric: bool) -> u128 {
    let importers = state.importers.each_ref().map(pack_importer);
    let packed = pack_in_order(state, &importers, [0, 1]);
    if symmetric { packed.min(pack_in_order(state, &importers, [1, 0])) } else { packed }
}

/// Unpacks a state, field by field in the reverse order of packing.
pub(super) fn unpack(packed: u128) -> State {
    let mut bits = Bits { bits: packed };
    let mut state = State::default();
    for importer in state.importers.iter_mut().rev() {
        *importer = unpack_importer(&mut bits);
    }
    for row in (0..MAX_ROWS).rev() {
        state.locks[row] = match bits.take(2) {
            0 => Lock::Free,
            1 => Lock::Producer,
            at => Lock::Importer(at - 2),
        };
        state.words[row] = bits.take(4) as i8 - 8;
    }
    state.height = bits.take(3);
    state.opened_rows = bits.take(MAX_ROWS);
    let row = bits.take(2);
    state.other = match bits.take(2) {
        0 => OtherScan::Idle,
        1 => OtherScan::Reap(row),
        _ => OtherScan::Unlock(row),
    };
    state.rows_left = bits.take(MAX_ROWS);
    state.loaded_bitmap = bits.take(MAX_ROWS);
    state.loaded_height = bits.take(3);
    state.free = FREES[usize::from(bits.take(4))];
    state.live = bits.take(1) != 0;
    state
}

/// Packs an importer. Both orders of its threads give the same bits.
fn pack_importer(importer: &Importer) -> Bits {
    let mut bits = Bits::default();
    let [first, second] = importer.threads;
    // A thread that does not exist is idle, which is the lowest stage, so that it stays last.
    for thread in [first.max(second), first.min(second)] {
        bits.put(thread.stage as u8, 3);
        bits.put(thread.row, 2);
        bits.put(thread.stale.into(), 1);
    }
    for row in importer.rows {
        bits.put(row as u8, 3);
    }
    bits.put(importer.memo, MAX_ROWS);
    bits.put(importer.memo_stale, MAX_ROWS);
    bits
}

fn unpack_importer(bits: &mut Bits) -> Importer {
    let mut importer = Importer { memo_stale: bits.take(MAX_ROWS), ..Importer::default() };
    importer.memo = bits.take(MAX_ROWS);
    for row in importer.rows.iter_mut().rev() {
        *row = ROW_STAGES[usize::from(bits.take(3))];
    }
    for thread in importer.threads.iter_mut().rev() {
        thread.stale = bits.take(1) != 0;
        thread.row = bits.take(2);
        thread.stage = STAGES[usize::from(bits.take(3))];
    }
    importer
}

/// Packs a state with its importers in the order `order`.
fn pack_in_order(state: &State, importers: &[Bits; IMPORTERS], order: [usize; IMPORTERS]) -> u128 {
    let mut bits = Bits::default();
    bits.put(state.live.into(), 1);
    bits.put(state.free as u8, 4);
    bits.put(state.loaded_height, 3);
    bits.put(state.loaded_bitmap, MAX_ROWS);
    bits.put(state.rows_left, MAX_ROWS);
    let (other, row) = match state.other {
        OtherScan::Idle => (0, 0),
        OtherScan::Reap(row) => (1, row),
        OtherScan::Unlock(row) => (2, row),
    };
    bits.put(other, 2);
    bits.put(row, 2);
    bits.put(state.opened_rows, MAX_ROWS);
    bits.put(state.height, 3);
    for row in 0..MAX_ROWS {
        bits.put((state.words[row] + 8) as u8, 4);
        let lock = match state.locks[row] {
            Lock::Free => 0,
            Lock::Producer => 1,
            Lock::Importer(at) => 2 + order[usize::from(at)] as u8,
        };
        bits.put(lock, 2);
    }
    for at in order {
        bits.bits = bits.bits << IMPORTER_BITS | importers[at].bits;
    }
    bits.bits
}
