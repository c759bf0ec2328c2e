//! The steps of the producer and its thread.

use std::fmt::Arguments;

use super::{
    Block, Contents, Fault, KEYS, PIECES, Phase, Pull, Purpose, Read, Registration, Remote, Rule, State, Task,
};

impl Remote {
    pub(super) fn producer_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let mut after = *state;
        let block = Block { life: state.life, generation: state.generation };
        match state.phase {
            Phase::Free if state.generation < self.generations && self.can_reuse(state) => {
                after.phase = Phase::Allocated;
                next(after, format_args!("the producer allocates"));
            }
            Phase::Allocated => {
                // The next owner writes one piece after the other, in any order.
                for piece in (0..PIECES).filter(|piece| state.pages[*piece] != Some(block)) {
                    let mut after = *state;
                    after.pages[piece] = Some(block);
                    next(after, format_args!("the producer writes piece {piece}"));
                }
                if state.pages == [Some(block); PIECES] {
                    (after.phase, after.handle) = (Phase::Shared, Some(block));
                    next(
                        after,
                        format_args!("the importer gets the handle of generation {}", block.generation),
                    );
                }
            }
            Phase::Shared => {
                after.phase = Phase::Free;
                after.generation += 1;
                next(after, format_args!("the producer frees, and retires the generation"));
            }
            Phase::Free => {}
        }
        let can_punch = state.phase == Phase::Free && self.can_reuse(state)
            || state.phase == Phase::Shared && !self.has(Rule::KeepPages);
        if self.trims && !state.is_trimmed && can_punch {
            let mut after = *state;
            (after.old_pages, after.pages, after.is_trimmed) = (state.pages, [None; PIECES], true);
            for registered in &mut after.registered {
                if let Some(Registration::This { is_old, .. }) = registered {
                    *is_old = true;
                }
            }
            next(after, format_args!("the producer punches the pages"));
        }
        if state.life + 1 < self.lives {
            let mut after = *state;
            after.life += 1;
            (after.generation, after.phase, after.pages) = (0, Phase::Free, [None; PIECES]);
            (after.registered, after.task, after.grant, after.pull) = ([None; KEYS], None, None, None);
            next(after, format_args!("the producer ends, and another one starts"));
        }
        self.registration_steps(state, next);
    }

    fn registration_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        for key in (0..KEYS).filter(|key| state.registered[*key].is_some()) {
            let mut after = *state;
            after.registered[key] = None;
            next(after, format_args!("the producer ends the registration with key {key}"));
        }
        if let Some(key) = state.registered.iter().position(Option::is_none)
            && self.others
            && !state.registered.contains(&Some(Registration::Other))
        {
            let mut after = *state;
            after.registered[key] = Some(Registration::Other);
            next(after, format_args!("the producer registers another block with key {key}"));
        }
        // A request for a key, of this importer and of others.
        if let Some(Read::OneSided { handle, key: None, .. }) = state.read {
            let mut after = *state;
            if !self.is_current(state, handle) {
                after.read = None;
                next(after, format_args!("the thread answers that the handle is stale"));
            } else if let Some(key) = self.register(&mut after, handle.generation) {
                after.known = Some((handle, key));
                after.read = Some(Read::one_sided(handle, Some(key)));
                next(after, format_args!("the thread gives out key {key}"));
            } else {
                after.read = Some(Read::Asked(handle));
                next(after, format_args!("the thread has no key, and the importer asks for the data"));
            }
        }
        let mut after = *state;
        if self.others
            && state.phase == Phase::Shared
            && let Some(key) = self.register(&mut after, state.generation)
            && after != *state
        {
            next(after, format_args!("the thread gives out key {key} to another importer"));
        }
    }

    /// Finds or makes the registration of the current block. Returns its key, if there is one free.
    fn register(&self, state: &mut State, generation: u8) -> Option<u8> {
        let is_found = |registered: &Option<Registration>| match registered {
            Some(Registration::This { generation: registered, .. }) => {
                *registered == generation || !self.has(Rule::RegisterGeneration)
            }
            _ => false,
        };
        let free = || state.registered.iter().position(Option::is_none);
        let key = state.registered.iter().position(is_found).or_else(free)?;
        state.registered[key].get_or_insert(Registration::This { generation, is_old: false });
        Some(key as u8)
    }

    /// The steps of the producer's thread.
    pub(super) fn thread_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let Some(task) = state.task else { return self.begin_steps(state, next) };
        let change = |change: &dyn Fn(&mut Task)| {
            let mut after = *state;
            after.task.iter_mut().for_each(change);
            after
        };
        if task.purpose != Purpose::Write && !(task.is_leased && task.is_checked) {
            if task.is_leased == self.has(Rule::LeaseFirst) && !task.is_checked {
                if self.is_current(state, task.handle) {
                    next(
                        change(&|task| task.is_checked = true),
                        format_args!("the thread finds the handle current"),
                    );
                } else {
                    let after = Self::replied(state, &task, None);
                    next(after, format_args!("the thread answers that the handle is stale"));
                }
            } else {
                next(change(&|task| task.is_leased = true), format_args!("the thread takes a lease"));
            }
            return;
        }
        if task.purpose == Purpose::Grant {
            let mut after = *state;
            (after.task, after.grant) = (None, Some((state.grants, task.handle)));
            after.pull.get_or_insert(Pull { handle: task.handle, grant: state.grants, is_late: false });
            return next(after, format_args!("the thread grants writes, and reads the data of one"));
        }
        for piece in (0..PIECES).filter(|piece| !task.copied[*piece]) {
            let mut after = change(&|task| {
                task.copied[piece] = true;
                task.reply[piece] = state.pages[piece];
            });
            if task.purpose == Purpose::Write && !Self::is_memory_of(state, task.handle) {
                after.fault = Some(Fault::StrayWrite);
            }
            next(after, format_args!("the thread copies piece {piece}"));
        }
        if task.copied == [true; PIECES] {
            let is_good = !self.has(Rule::CheckAfterCopy) || self.is_current(state, task.handle);
            let after = Self::replied(state, &task, is_good.then_some(task.reply));
            next(
                after,
                format_args!(
                    "the thread replies, {}",
                    if is_good { "with success" } else { "that it is stale" }
                ),
            );
        }
    }

    /// Returns the state after the reply to a task: data, or that the handle is stale.
    fn replied(state: &State, task: &Task, reply: Option<[Contents; PIECES]>) -> State {
        let mut after = *state;
        after.task = None;
        match task.purpose {
            Purpose::Read { is_late: true } => after.late_reply = reply.or(state.late_reply),
            Purpose::Read { is_late: false } => after.read = Some(Read::Answered(task.handle, reply)),
            Purpose::Grant | Purpose::Write => {}
        }
        after
    }

    /// The producer's thread takes the next request, or data that has arrived.
    fn begin_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let begin = |after: &mut State, purpose, handle| {
            let (copied, reply) = ([false; PIECES], [None; PIECES]);
            after.task = Some(Task { purpose, handle, is_leased: false, is_checked: false, copied, reply });
        };
        if let Some(Read::Asked(handle)) = state.read {
            let mut after = *state;
            after.read = Some(Read::Served(handle));
            begin(&mut after, Purpose::Read { is_late: false }, handle);
            next(after, format_args!("the thread takes a request for generation {}", handle.generation));
        }
        if let Some(handle) = state.handle
            && state.grants < self.grants
            && state.grant.is_none()
        {
            let mut after = *state;
            after.grants += 1;
            begin(&mut after, Purpose::Grant, handle);
            next(
                after,
                format_args!("the thread takes a request for a grant to generation {}", handle.generation),
            );
        }
        if let Some(pull) = state.pull {
            let mut after = *state;
            after.pull = None;
            let is_granted = match state.grant {
                Some((grant, _)) => grant == pull.grant || !self.has(Rule::CompareGrant),
                None => false,
            };
            if is_granted || !self.has(Rule::CheckGrantLast) {
                begin(&mut after, Purpose::Write, pull.handle);
                next(after, format_args!("the data of a write arrives"));
            } else {
                next(after, format_args!("the data of a write arrives, and there is no grant"));
            }
        }
    }

    /// Grants end by time, with their session, or by the importer. Data of their writes may arrive
    /// later.
    pub(super) fn grant_steps(&self, state: &State, next: &mut impl FnMut(State, Arguments<'_>)) {
        let is_writing = state.task.is_some_and(|task| task.purpose == Purpose::Write);
        if state.grant.is_some() && !(is_writing && self.has(Rule::EndBetweenWrites)) {
            let mut after = *state;
            after.grant = None;
            after.pull.iter_mut().for_each(|pull| pull.is_late = true);
            next(after, format_args!("the grant ends"));
        }
        if let Some(Pull { is_late: true, .. }) = state.pull
            && let Some(task) = state.task
            && !self.has(Rule::KeepServerBuffers)
        {
            // It was the buffer of the pull.
            for piece in 0..PIECES {
                let mut after = *state;
                after.pull = None;
                after.task = Some(task);
                after.task.iter_mut().for_each(|task| task.reply[piece] = None);
                next(after, format_args!("piece {piece} of a write arrives in the buffer"));
            }
        }
    }
}
