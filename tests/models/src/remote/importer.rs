//! The steps of the importer, and of the fabric that serves it.

use std::fmt::Arguments;

use super::{Block, Contents, Fault, PIECES, Purpose, Read, Registration, Remote, Rule, State, Task};

impl Remote {
    /// Returns what an operation with this key reads of a piece; `None` if it is refused.
    fn serve(&self, state: &State, key: u8, piece: usize) -> Option<Contents> {
        match state.registered[usize::from(key)]? {
            Registration::This { is_old: false, .. } => Some(state.pages[piece]),
            Registration::This { is_old: true, .. } => Some(state.old_pages[piece]),
            Registration::Other => (!self.has(Rule::AddressMemory)).then_some(None),
        }
    }

    pub(super) fn importer_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        match state.read {
            None => self.begin_read_steps(state, next),
            Some(Read::Asked(_)) => {}
            Some(Read::Served(_)) => {
                let mut after = *state;
                after.read = None;
                if let Some(Task { purpose: Purpose::Read { is_late }, .. }) = &mut after.task {
                    *is_late = true;
                }
                next(after, format_args!("the read times out"));
            }
            Some(Read::Answered(handle, reply)) => {
                let mut after = *state;
                after.read = None;
                if reply.is_some_and(|contents| contents != [Some(handle); PIECES]) {
                    after.fault = Some(Fault::Stale);
                }
                next(after, format_args!("the read returns {reply:?}"));
                after = State { late_reply: reply.or(state.late_reply), fault: None, ..after };
                next(after, format_args!("the read times out, and its reply is on the way"));
            }
            Some(Read::OneSided { key: None, .. }) => {}
            Some(Read::OneSided { handle, key: Some(key), arrived, life, generation }) => {
                for piece in (0..PIECES).filter(|piece| !arrived[*piece]) {
                    let mut after = *state;
                    let Some(contents) = self.serve(state, key, piece) else {
                        Self::ask_again(&mut after, handle);
                        next(
                            after,
                            format_args!("the read of piece {piece} is refused, and the importer asks again"),
                        );
                        continue;
                    };
                    after.buffer[piece] = contents;
                    if let Some(Read::OneSided { arrived, .. }) = &mut after.read {
                        arrived[piece] = true;
                    }
                    next(after, format_args!("piece {piece} is read: {contents:?}"));
                }
                if generation.is_none() && (arrived == [true; PIECES] || !self.has(Rule::ReadDataFirst)) {
                    self.validation_steps(state, (handle, key), life, next);
                }
                if arrived == [true; PIECES]
                    && let (Some(life), Some(generation)) = (life, generation)
                {
                    let is_current = (!self.has(Rule::CompareNonce) || life == handle.life)
                        && (!self.has(Rule::CompareGeneration) || generation == handle.generation);
                    let mut after = *state;
                    after.read = None;
                    if is_current && state.buffer != [Some(handle); PIECES] {
                        after.fault = Some(Fault::Stale);
                    }
                    next(
                        after,
                        format_args!(
                            "the read returns {}",
                            if is_current { "data" } else { "that it is stale" }
                        ),
                    );
                }
                if state.late.is_none() {
                    let mut after = *state;
                    (after.read, after.late) = (None, Some((key, arrived)));
                    next(after, format_args!("the read times out"));
                }
            }
        }
    }

    fn ask_again(after: &mut State, handle: Block) {
        (after.known, after.buffer) = (None, [None; PIECES]);
        after.read = Some(Read::one_sided(handle, None));
    }

    fn begin_read_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let Some(handle) = state.handle.filter(|_| state.reads < self.reads) else { return };
        let mut after = *state;
        (after.reads, after.buffer) = (state.reads + 1, [None; PIECES]);
        if self.one_sided {
            let key = state.known.filter(|(block, _)| *block == handle).map(|(_, key)| key);
            after.read = Some(Read::one_sided(handle, key));
            next(
                after,
                format_args!("the importer begins a one-sided read of generation {}", handle.generation),
            );
        }
        if self.messages {
            after.read = Some(Read::Asked(handle));
            next(after, format_args!("the importer asks for the data of generation {}", handle.generation));
        }
    }

    /// The steps that read the slot, by the registration that was made along with that of the data.
    fn validation_steps(
        &self,
        state: &State,
        (handle, key): (Block, u8),
        life: Option<u8>,
        next: &mut impl FnMut(State, Arguments<'_>),
    ) {
        let mut after = *state;
        let read_generation = match state.registered[usize::from(key)] {
            Some(Registration::This { .. }) => self.generation(state),
            Some(Registration::Other) if !self.has(Rule::AddressMemory) => handle.generation,
            _ => {
                Self::ask_again(&mut after, handle);
                return next(
                    after,
                    format_args!("the read of the slot is refused, and the importer asks again"),
                );
            }
        };
        let Some(Read::OneSided { life: read_life, generation, .. }) = &mut after.read else { return };
        if self.has(Rule::ReadNonceAlong) {
            (*read_life, *generation) = (Some(state.life), Some(read_generation));
        } else if life.is_none() {
            *read_life = Some(state.life);
        } else {
            *generation = Some(read_generation);
        }
        next(after, format_args!("the slot is read: life {}, generation {read_generation}", state.life));
    }

    /// What belongs to a read that was given up arrives.
    pub(super) fn late_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        if let Some((key, arrived)) = state.late {
            for piece in (0..PIECES).filter(|piece| !arrived[*piece]) {
                let mut after = *state;
                after.late = Some((key, core::array::from_fn(|at| arrived[at] || at == piece)));
                if let Some(contents) = self.serve(state, key, piece)
                    && !self.has(Rule::KeepBuffers)
                {
                    after.buffer[piece] = contents;
                }
                next(after, format_args!("piece {piece} of the read that timed out arrives"));
            }
        }
        if let Some(reply) = state.late_reply {
            let mut after = *state;
            after.late_reply = None;
            if !self.has(Rule::CompareSession)
                && let Some(Read::Asked(handle) | Read::Served(handle)) = state.read
            {
                after.read = Some(Read::Answered(handle, Some(reply)));
            }
            next(after, format_args!("the reply to the read that timed out arrives"));
        }
    }
}
