//! Validated reads, and granted writes, of a block on another machine.
//!
//! A producer allocates, frees, trims and ends, at one block of two pieces and its slot in the
//! ledger. An importer reads the pieces over the fabric, then the nonce and the generation, and
//! takes the data only if both are those of its handle. With a grant it writes.
//!
//! # Abstractions
//!
//! - An operation of the fabric is served in one step, by the registration that has its key then.
//!   Operations that are in flight together are served in any order.
//! - A registration keeps its pages, also when the producer has punched them. That is what hardware
//!   does.
//! - Keys are numbers that a producer hands out from 0, so that those of its next life are equal. A
//!   fabric that lets the application choose them has better ones.
//! - The contents of a piece are the life and the generation of the block for which they were
//!   written. The importer gets handles of blocks that are written.

use std::fmt::Arguments;

use crate::Model;

const PIECES: usize = 2;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The generation is read after all data has arrived. Left out: at the same time.
    ReadDataFirst,
    /// Nonce and generation are read by one operation. Left out: by two, the nonce first.
    ReadNonceAlong,
    /// The nonce is compared. Left out: only the generation.
    CompareNonce,
    /// The generation is compared. Left out: only the nonce.
    CompareGeneration,
    /// The generation grows before the memory is used again. Left out: when the next block is
    /// handed out.
    RetireFirst,
    /// A registration ends before its pages are punched. Left out: it stays.
    UnregisterBeforeTrim,
    /// A buffer is used again after the operations into it have completed. Left out: after the call
    /// has returned.
    KeepBuffers,
    /// A block with a grant is freed after the end of the grant. Left out: at once.
    DeferFree,
    /// A grant has a key of its own, whose registration ends before the grant does. Left out: it
    /// stays.
    CloseGrantFirst,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A read returned data as good that is not that of its handle.
    Stale,
    /// A write changed memory that is not its handle's block.
    StrayWrite,
}

/// The life of a producer and the generation of a block in it; `None` for zeroed memory.
type Contents = Option<Block>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block {
    life: u8,
    generation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Handle {
    block: Block,
    key: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Free. The generation is that of the next block, unless it is not retired.
    Free,
    /// Allocated, and not written yet.
    Allocated,
    /// Its handle is known.
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Grant {
    None,
    /// The importer may write.
    Open,
    /// Its registration has ended, and the grant has not.
    Closed,
}

/// A read in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Read {
    handle: Handle,
    arrived: [bool; PIECES],
    life: Option<u8>,
    generation: Option<u8>,
}

/// The state of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    life: u8,
    generation: u8,
    phase: Phase,
    /// The current pages, and those before the trim, which only a registration has.
    pages: [Contents; PIECES],
    old_pages: [Contents; PIECES],
    trims: u8,
    /// The key of the registration, and whether it has the pages before the trim.
    registered: Option<(u8, bool)>,
    keys: u8,
    grant: Grant,
    /// Whether operations with the key of the grant reach the memory.
    is_grant_registered: bool,

    handle: Option<Handle>,
    buffer: [Contents; PIECES],
    read: Option<Read>,
    /// Pieces of a read that was given up, which may still arrive.
    late: Option<(Handle, [bool; PIECES])>,
    reads: u8,
    /// A granted write in flight.
    write: Option<Handle>,
    fault: Option<Fault>,
}

/// The model: its sizes, and the rule that is left out.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// The most generations of a life.
    pub generations: u8,
    /// The most lives of the producer.
    pub lives: u8,
    /// The most trims.
    pub trims: u8,
    /// The most reads of the importer.
    pub reads: u8,
    /// Whether the importer writes.
    pub writes: bool,
    /// The rule that is left out, if any.
    pub left_out: Option<Rule>,
}

impl Remote {
    /// Returns a model whose invariants hold.
    #[must_use]
    pub const fn new() -> Self {
        Self { generations: 3, lives: 2, trims: 1, reads: 2, writes: true, left_out: None }
    }

    fn has(&self, rule: Rule) -> bool {
        self.left_out != Some(rule)
    }

    fn producer_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        match state.phase {
            Phase::Free if state.generation < self.generations => {
                after.phase = Phase::Allocated;
                next(after, format_args!("the producer allocates"));
            }
            Phase::Allocated => {
                let block = Block { life: state.life, generation: state.generation };
                // The next owner writes one piece after the other, in any order.
                for piece in (0..PIECES).filter(|piece| state.pages[*piece] != Some(block)) {
                    let mut after = *state;
                    after.pages[piece] = Some(block);
                    next(after, format_args!("the producer writes piece {piece}"));
                }
                if state.pages == [Some(block); PIECES]
                    && let Some((key, _)) = state.registered
                {
                    after.phase = Phase::Shared;
                    after.handle = Some(Handle { block, key });
                    next(
                        after,
                        format_args!("the importer gets the handle of generation {}", state.generation),
                    );
                }
            }
            Phase::Shared if state.grant == Grant::None || !self.has(Rule::DeferFree) => {
                after.phase = Phase::Free;
                after.generation += 1;
                next(after, format_args!("the producer frees, and retires the generation"));
            }
            _ => {}
        }
        self.trim_steps(state, next);
        self.grant_steps(state, next);
        if state.life + 1 < self.lives {
            let mut after = *state;
            after.life += 1;
            (after.generation, after.phase, after.pages) = (0, Phase::Free, [None; PIECES]);
            (after.registered, after.keys) = (Some((0, false)), 1);
            (after.grant, after.is_grant_registered) = (Grant::None, false);
            next(after, format_args!("the producer ends, and another one starts"));
        }
    }

    fn trim_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        match state.registered {
            Some(_) if state.phase == Phase::Free && state.trims < self.trims => {
                if self.has(Rule::UnregisterBeforeTrim) {
                    after.registered = None;
                    next(after, format_args!("the producer ends the registration"));
                } else {
                    after.registered = state.registered.map(|(key, _)| (key, true));
                    (after.old_pages, after.pages) = (state.pages, [None; PIECES]);
                    after.trims += 1;
                    next(after, format_args!("the producer punches the pages"));
                }
            }
            None => {
                (after.old_pages, after.pages) = ([None; PIECES], [None; PIECES]);
                (after.registered, after.keys) = (Some((state.keys, false)), state.keys + 1);
                after.trims += 1;
                next(after, format_args!("the producer punches the pages, and registers them"));
            }
            Some(_) => {}
        }
    }

    fn grant_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        match state.grant {
            Grant::None if self.writes && state.phase == Phase::Shared => {
                // A registration that a former grant has left is of no use to this one.
                (after.grant, after.is_grant_registered) = (Grant::Open, true);
                after.write = state.handle;
                next(after, format_args!("the producer grants a write, and the importer begins it"));
            }
            Grant::Open if self.has(Rule::CloseGrantFirst) => {
                (after.grant, after.is_grant_registered) = (Grant::Closed, false);
                next(after, format_args!("the producer ends the registration of the grant"));
            }
            Grant::Open | Grant::Closed => {
                after.grant = Grant::None;
                next(after, format_args!("the grant ends"));
            }
            Grant::None => {}
        }
        if let Some(handle) = state.write {
            let mut after = *state;
            after.write = None;
            if state.is_grant_registered && handle.block.life == state.life {
                let current = Block { life: state.life, generation: state.generation };
                if state.phase != Phase::Shared || current != handle.block {
                    after.fault = Some(Fault::StrayWrite);
                }
                next(after, format_args!("the write arrives"));
            } else {
                next(after, format_args!("the write is refused"));
            }
        }
    }

    /// Returns what an operation with this key reads of a piece; `None` if it is refused.
    fn serve(state: &State, key: u8, piece: usize) -> Option<Contents> {
        let (registered, is_old) = state.registered?;
        let pages = if is_old { &state.old_pages } else { &state.pages };
        (registered == key).then(|| pages[piece])
    }

    fn importer_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let Some(read) = state.read else {
            if let Some(handle) = state.handle
                && state.reads < self.reads
            {
                let mut after = *state;
                after.reads += 1;
                after.buffer = [None; PIECES];
                after.read = Some(Read { handle, arrived: [false; PIECES], life: None, generation: None });
                next(
                    after,
                    format_args!("the importer begins a read of generation {}", handle.block.generation),
                );
            }
            return;
        };
        for piece in (0..PIECES).filter(|piece| !read.arrived[*piece]) {
            let mut after = *state;
            match Self::serve(state, read.handle.key, piece) {
                Some(contents) => {
                    after.buffer[piece] = contents;
                    after.read.as_mut().expect("a read").arrived[piece] = true;
                    next(after, format_args!("piece {piece} is read: {contents:?}"));
                }
                None => {
                    after.read = None;
                    next(after, format_args!("the read of piece {piece} is refused"));
                }
            }
        }
        if read.arrived == [true; PIECES] || !self.has(Rule::ReadDataFirst) {
            self.validation_steps(state, &read, next);
        }
        if read.arrived == [true; PIECES] && read.life.is_some() && read.generation.is_some() {
            let mut after = *state;
            let is_current = (!self.has(Rule::CompareNonce) || read.life == Some(read.handle.block.life))
                && (!self.has(Rule::CompareGeneration)
                    || read.generation == Some(read.handle.block.generation));
            after.read = None;
            if is_current && state.buffer != [Some(read.handle.block); PIECES] {
                after.fault = Some(Fault::Stale);
            }
            next(
                after,
                format_args!("the read returns {}", if is_current { "data" } else { "that it is stale" }),
            );
        }
        if state.late.is_none() {
            let mut after = *state;
            (after.read, after.late) = (None, Some((read.handle, read.arrived)));
            next(after, format_args!("the read times out"));
        }
    }

    /// The steps that read the ledger, of the same registration.
    fn validation_steps(&self, state: &State, read: &Read, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        if read.generation.is_some() {
            return;
        }
        if state.registered.is_none_or(|(key, _)| key != read.handle.key) {
            after.read = None;
            next(after, format_args!("the read of the ledger is refused"));
            return;
        }
        let changed = after.read.as_mut().expect("a read");
        // A block that is freed and not retired has the generation of its handles.
        let is_hidden = !self.has(Rule::RetireFirst) && state.phase != Phase::Shared;
        let generation = state.generation - u8::from(is_hidden && state.generation > 0);
        if self.has(Rule::ReadNonceAlong) {
            (changed.life, changed.generation) = (Some(state.life), Some(generation));
        } else if read.life.is_none() {
            changed.life = Some(state.life);
        } else {
            changed.generation = Some(generation);
        }
        next(after, format_args!("the ledger is read: life {}, generation {generation}", state.life));
    }

    /// Pieces of a read that was given up arrive.
    fn late_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let Some((handle, arrived)) = state.late else { return };
        for piece in (0..PIECES).filter(|piece| !arrived[*piece]) {
            let mut after = *state;
            after.late = Some((handle, core::array::from_fn(|at| arrived[at] || at == piece)));
            if let Some(contents) = Self::serve(state, handle.key, piece)
                && !self.has(Rule::KeepBuffers)
            {
                after.buffer[piece] = contents;
            }
            next(after, format_args!("piece {piece} of the read that timed out arrives"));
        }
    }
}

impl Default for Remote {
    fn default() -> Self {
        Self::new()
    }
}

impl Model for Remote {
    type State = State;
    type Packed = State;
    type Fault = Fault;

    fn start(&self) -> State {
        State {
            life: 0,
            generation: 0,
            phase: Phase::Free,
            pages: [None; PIECES],
            old_pages: [None; PIECES],
            trims: 0,
            registered: Some((0, false)),
            keys: 1,
            grant: Grant::None,
            is_grant_registered: false,
            handle: None,
            buffer: [None; PIECES],
            read: None,
            late: None,
            reads: 0,
            write: None,
            fault: None,
        }
    }

    fn steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        self.producer_steps(state, next);
        self.importer_steps(state, next);
        self.late_steps(state, next);
    }

    fn fault(&self, state: &State) -> Option<Fault> {
        state.fault
    }

    fn pack(&self, state: &State) -> State {
        *state
    }

    fn unpack(&self, packed: State) -> State {
        packed
    }
}
