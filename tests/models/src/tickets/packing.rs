//! The compact form of states. Symmetric states have the same bits.

use super::{
    FreeStage, IMPORTERS, MAX_ROWS, MAX_THREADS, MAX_WORDS, Operation, Owner, Row, RowStage, Stage, State,
    Thread, Word,
};

const OPERATIONS: [Operation; 4] = [Operation::None, Operation::Handle, Operation::Ticket, Operation::Send];

const STAGES: [Stage; 14] = [
    Stage::Idle,
    Stage::SetBit,
    Stage::Add,
    Stage::Count,
    Stage::Claim,
    Stage::Load,
    Stage::Store,
    Stage::Open,
    Stage::Subtract,
    Stage::ClaimStore,
    Stage::Drop,
    Stage::Close,
    Stage::Refused,
    Stage::Excess,
];

const ROW_STAGES: [RowStage; 4] =
    [RowStage::Ready, RowStage::ClearTickets, RowStage::ClearWord, RowStage::Raise];

const FREES: [FreeStage; 9] = [
    FreeStage::Live,
    FreeStage::LoadEvents,
    FreeStage::LoadHeight,
    FreeStage::LoadBitmap,
    FreeStage::Scan,
    FreeStage::ClearTickets,
    FreeStage::ClearWord,
    FreeStage::CheckEvents,
    FreeStage::Publish,
];

/// The compact form: one number for the scan, and one for each row and each importer.
pub(super) type Packed = [u32; 1 + MAX_ROWS + IMPORTERS];

/// A stack of small numbers.
#[derive(Clone, Copy, Default)]
struct Bits(u32);

impl Bits {
    fn put(&mut self, value: u8, width: usize) {
        debug_assert!(u32::from(value) < 1 << width);
        self.0 = self.0 << width | u32::from(value);
    }

    fn take(&mut self, width: usize) -> u8 {
        let value = self.0 as u8 & ((1 << width) - 1);
        self.0 >>= width;
        value
    }

    fn put_bit(&mut self, value: bool) {
        self.put(value.into(), 1);
    }

    fn take_bit(&mut self) -> bool {
        self.take(1) != 0
    }
}

/// Packs a state. If the importers are `symmetric`, both their orders give the same bits.
pub(super) fn pack(state: &State, symmetric: bool) -> Packed {
    let packed = pack_in_order(state, [0, 1]);
    if symmetric { packed.min(pack_in_order(state, [1, 0])) } else { packed }
}

/// Unpacks a state. Each part has its fields in the reverse order of packing.
pub(super) fn unpack(packed: Packed) -> State {
    let [scan, rest @ ..] = packed;
    let mut bits = Bits(scan);
    let mut state = State { height: bits.take(3), ..State::default() };
    for mask in [&mut state.opened_rows, &mut state.rows_left, &mut state.loaded_bitmap] {
        *mask = bits.take(MAX_ROWS);
    }
    state.loaded_height = bits.take(3);
    state.is_rescan = bits.take_bit();
    state.has_moved = bits.take_bit();
    state.free = FREES[usize::from(bits.take(4))];
    state.rows = std::array::from_fn(|row| unpack_row(Bits(rest[row])));
    state.threads = std::array::from_fn(|at| unpack_threads(Bits(rest[MAX_ROWS + at])));
    state
}

/// Packs a state with its importers in the order `order`, which is its own inverse.
fn pack_in_order(state: &State, order: [usize; IMPORTERS]) -> Packed {
    let mut packed = Packed::default();
    let [scan, rest @ ..] = &mut packed;
    *scan = pack_scan(state);
    for (row, part) in state.rows.iter().zip(&mut *rest) {
        *part = pack_row(row, order);
    }
    for (at, part) in order.into_iter().zip(&mut rest[MAX_ROWS..]) {
        *part = pack_threads(state.threads[at]);
    }
    packed
}

fn pack_scan(state: &State) -> u32 {
    let mut bits = Bits::default();
    bits.put(state.free as u8, 4);
    bits.put_bit(state.has_moved);
    bits.put_bit(state.is_rescan);
    bits.put(state.loaded_height, 3);
    for mask in [state.loaded_bitmap, state.rows_left, state.opened_rows] {
        bits.put(mask, MAX_ROWS);
    }
    bits.put(state.height, 3);
    bits.0
}

fn pack_row(row: &Row, order: [usize; IMPORTERS]) -> u32 {
    let mut bits = Bits::default();
    for word in &row.words {
        bits.put(word.left, 2);
        bits.put(word.promised, 2);
        for flag in [word.is_held, word.is_old, word.was_used, word.was_used_old] {
            bits.put_bit(flag);
        }
    }
    bits.put((row.count + 8) as u8, 4);
    bits.put(row.stage as u8, 2);
    let owner = match row.owner {
        Owner::None => 0,
        Owner::Scan => 1,
        Owner::Process(at) => 2 + order.get(usize::from(at)).map_or(at, |&at| at as u8),
    };
    bits.put(owner, 3);
    bits.0
}

fn unpack_row(mut bits: Bits) -> Row {
    let owner = match bits.take(3) {
        0 => Owner::None,
        1 => Owner::Scan,
        at => Owner::Process(at - 2),
    };
    let stage = ROW_STAGES[usize::from(bits.take(2))];
    let count = bits.take(4) as i8 - 8;
    let mut words = [Word::default(); MAX_WORDS];
    for word in words.iter_mut().rev() {
        word.was_used_old = bits.take_bit();
        word.was_used = bits.take_bit();
        word.is_old = bits.take_bit();
        word.is_held = bits.take_bit();
        word.promised = bits.take(2);
        word.left = bits.take(2);
    }
    Row { owner, stage, count, words }
}

/// Packs the threads of an importer. Both orders of the threads give the same bits.
fn pack_threads([first, second]: [Thread; MAX_THREADS]) -> u32 {
    let mut bits = Bits::default();
    // A thread that does not exist is idle, which is the lowest, so that it stays last.
    for thread in [first.max(second), first.min(second)] {
        bits.put(thread.operation as u8, 2);
        bits.put(thread.stage as u8, 4);
        bits.put(thread.row, 2);
        bits.put(thread.ticket.0, 2);
        bits.put(thread.ticket.1, 1);
        bits.put_bit(thread.is_in_word);
        bits.put_bit(thread.is_old);
        bits.put(thread.loaded, 2);
    }
    bits.0
}

fn unpack_threads(mut bits: Bits) -> [Thread; MAX_THREADS] {
    let mut threads = [Thread::default(); MAX_THREADS];
    for thread in threads.iter_mut().rev() {
        thread.loaded = bits.take(2);
        thread.is_old = bits.take_bit();
        thread.is_in_word = bits.take_bit();
        thread.ticket.1 = bits.take(1);
        thread.ticket.0 = bits.take(2);
        thread.row = bits.take(2);
        thread.stage = STAGES[usize::from(bits.take(4))];
        thread.operation = OPERATIONS[usize::from(bits.take(2))];
    }
    threads
}
