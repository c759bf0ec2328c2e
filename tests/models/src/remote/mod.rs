//! Validated reads, and granted writes, of a block on another machine.
//!
//! A producer allocates, frees, trims and ends, at one block of two pieces and its slot in the
//! ledger. Its thread serves requests, one at a time, while other threads of the process go on.
//!
//! | request | what happens |
//! |---|---|
//! | a read by message | The thread takes a lease, checks the handle, copies, checks again, replies |
//! | a one-sided read | The thread gives out a key; the fabric reads the pieces, then the slot |
//! | a grant | The thread takes a lease, checks the handle, and keeps the lease |
//! | a write | The thread reads the data into its own buffer, looks up the grant, and copies |
//!
//! # Abstractions
//!
//! - An operation of the fabric is served in one step, by the registration that has its key then.
//!   Operations that are in flight together are served in any order.
//! - A registration keeps its pages, also when the producer has punched them. That is what hardware
//!   does.
//! - A registration may end at any time: the producer evicts it, or has swept it after the free of
//!   its block. Operations with its key are refused then, and the importer asks for a key again.
//! - A key that has become free is given out again, to this or to another block. So do processes
//!   that replace the producer. A fabric that lets the application choose keys has better ones.
//! - The contents of a piece are the life and the generation of the block for which they were
//!   written. The importer gets handles of blocks that are written.
//! - A granted write leaves the contents as they are. Data that arrives late from an importer is
//!   data of no block.
//! - The producer's thread uses a buffer of a read by message for data of a write, if it may.
//!
//! # What is not a rule
//!
//! - A registration need not end before its pages are punched, because no later generation uses it.
//! - A key may be given out, or a registration exist, for a block that was freed: the validation
//!   finds that.
//! - A read by message needs the lease or the second check. The code has both.
//! - A write need not compare the generation: the lease of its grant keeps the memory. The code
//!   compares it, so that the importer learns that the block was freed.

use std::fmt::Arguments;

use crate::Model;

mod importer;
mod producer;

const PIECES: usize = 2;
const KEYS: usize = 2;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The slot is read after all data has arrived. Left out: at the same time.
    ReadDataFirst,
    /// Nonce and generation are read by one operation. Left out: by two, the nonce first.
    ReadNonceAlong,
    /// The importer compares the nonce. Left out: only the generation.
    CompareNonce,
    /// The importer compares the generation. Left out: only the nonce.
    CompareGeneration,
    /// The producer's thread compares the nonce of handles. Left out: only the generation.
    CheckNonce,
    /// The generation grows before the memory is used again. Left out: when the next block is
    /// handed out.
    RetireFirst,
    /// A registration is for one generation. Left out: for all blocks of its memory.
    RegisterGeneration,
    /// Operations have the address of the memory, which a registration of other memory refuses (or
    /// keys are never given out twice). Left out: the key decides alone.
    AddressMemory,
    /// The pages of a current block are not punched. Left out: they may be.
    KeepPages,
    /// The importer uses a buffer again after the operations into it have completed. Left out:
    /// after the call has returned.
    KeepBuffers,
    /// The producer's thread uses a buffer again after the data of a write has arrived in it. Left
    /// out: after the end of the grant.
    KeepServerBuffers,
    /// A reply is taken by the read of its session and number. Left out: by the one in progress.
    CompareSession,
    /// The memory of a leased block is neither used again nor punched. Left out: it is.
    DeferReuse,
    /// A lease is taken before the handle is checked. Left out: afterwards.
    LeaseFirst,
    /// A read by message checks the handle after the copy, too. Left out: only before.
    CheckAfterCopy,
    /// The grant of a write is looked up after its data has arrived. Left out: before it is asked
    /// for.
    CheckGrantLast,
    /// Grants have numbers, which are compared. Left out: a write uses the grant that there is.
    CompareGrant,
    /// A grant does not end while data is copied within it. Left out: at any time.
    EndBetweenWrites,
}

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A read returned data as good that is not that of its handle.
    Stale,
    /// A write changed memory that is not its handle's block.
    StrayWrite,
}

/// The block for which a piece was written; `None` for zeroed memory, and data of no block.
type Contents = Option<Block>;

/// The life of a producer, and the generation of a block in it. Also its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block {
    life: u8,
    generation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Free, or leased and to be free. The generation is that of the next block, unless it is not
    /// retired.
    Free,
    /// Allocated, and not written yet.
    Allocated,
    /// Its handle is known.
    Shared,
}

/// What a key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Registration {
    /// The memory of this block. If it is `old`, the pages from before the trim.
    This { generation: u8, is_old: bool },
    /// Another block, whose slot has the generation of the reader's handle.
    Other,
}

/// What the producer's thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    /// A read by message. If it is late, the importer has given it up.
    Read {
        is_late: bool,
    },
    Grant,
    /// A write whose data has arrived.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Task {
    purpose: Purpose,
    handle: Block,
    is_leased: bool,
    is_checked: bool,
    copied: [bool; PIECES],
    reply: [Contents; PIECES],
}

/// A read in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Read {
    /// By message: asked for; served by the thread; answered, or stale.
    Asked(Block),
    Served(Block),
    Answered(Block, Option<[Contents; PIECES]>),
    /// One-sided; without a key, one is asked for.
    OneSided {
        handle: Block,
        key: Option<u8>,
        arrived: [bool; PIECES],
        life: Option<u8>,
        generation: Option<u8>,
    },
}

impl Read {
    const fn one_sided(handle: Block, key: Option<u8>) -> Self {
        Self::OneSided { handle, key, arrived: [false; PIECES], life: None, generation: None }
    }
}

/// Data of a write on its way into a buffer of the producer's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pull {
    handle: Block,
    grant: u8,
    /// Whether the grant ended meanwhile.
    is_late: bool,
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
    is_trimmed: bool,
    registered: [Option<Registration>; KEYS],
    task: Option<Task>,
    /// The number of the grant in force, and its block.
    grant: Option<(u8, Block)>,
    grants: u8,
    pull: Option<Pull>,

    handle: Option<Block>,
    /// A key that the importer knows, and the block for which it was given out.
    known: Option<(Block, u8)>,
    buffer: [Contents; PIECES],
    read: Option<Read>,
    reads: u8,
    /// Pieces of a read that was given up, which may still arrive, and their key.
    late: Option<(u8, [bool; PIECES])>,
    late_reply: Option<[Contents; PIECES]>,
    fault: Option<Fault>,
}

/// The model: its sizes, and the rules that are left out.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// The most generations of a life.
    pub generations: u8,
    /// The most lives of the producer.
    pub lives: u8,
    /// Whether the producer trims, once.
    pub trims: bool,
    /// The most one-sided reads and reads by message together.
    pub reads: u8,
    /// Whether reads are one-sided.
    pub one_sided: bool,
    /// Whether reads are by message.
    pub messages: bool,
    /// The most grants, with a write each.
    pub grants: u8,
    /// Whether the producer registers another block, too, and this one for another importer.
    pub others: bool,
    /// The rules that are left out.
    pub left_out: &'static [Rule],
}

impl Remote {
    /// Returns a model whose invariants hold.
    #[must_use]
    pub const fn new() -> Self {
        let (one_sided, messages) = (true, true);
        let (trims, others, left_out) = (true, true, &[]);
        Self { generations: 3, lives: 2, trims, reads: 2, one_sided, messages, grants: 2, others, left_out }
    }

    fn has(&self, rule: Rule) -> bool {
        !self.left_out.contains(&rule)
    }

    /// Returns whether the thread has a lease of the block.
    fn is_leased(state: &State) -> bool {
        state.grant.is_some() || state.task.is_some_and(|task| task.is_leased)
    }

    fn can_reuse(&self, state: &State) -> bool {
        !Self::is_leased(state) || !self.has(Rule::DeferReuse)
    }

    /// Returns the generation in the slot. A block that is freed and not retired has that of its
    /// handles.
    fn generation(&self, state: &State) -> u8 {
        let is_hidden = !self.has(Rule::RetireFirst) && state.phase != Phase::Shared;
        state.generation.saturating_sub(u8::from(is_hidden))
    }

    /// Returns whether the thread takes a handle for current.
    fn is_current(&self, state: &State, handle: Block) -> bool {
        (handle.life == state.life || !self.has(Rule::CheckNonce))
            && handle.generation == self.generation(state)
    }

    /// Returns whether the memory is that of a block: current, or leased since it was.
    fn is_memory_of(state: &State, block: Block) -> bool {
        let is_freed = state.phase == Phase::Free && state.generation == block.generation + 1;
        let is_shared = state.phase == Phase::Shared && state.generation == block.generation;
        state.life == block.life && (is_shared || is_freed && Self::is_leased(state))
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
            is_trimmed: false,
            registered: [None; KEYS],
            task: None,
            grant: None,
            grants: 0,
            pull: None,
            handle: None,
            known: None,
            buffer: [None; PIECES],
            read: None,
            reads: 0,
            late: None,
            late_reply: None,
            fault: None,
        }
    }

    fn steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        self.producer_steps(state, next);
        self.thread_steps(state, next);
        self.grant_steps(state, next);
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
