//! Commands that run many threads or many cycles.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umf::{Access, Handle, Mapping, Pool};
use umf_tests::Patience;

use crate::memory::{self, ActorState, content, fill, holds};
use crate::process::wait_for;
use crate::{Answer, Failure};

pub(crate) fn execute(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("open-storm", [threads, rounds, handles @ ..]) => open_storm(threads, rounds, handles),
        ("export-storm", [pool, threads, rounds]) => export_storm(actor, pool, threads, rounds),
        ("fork-storm", [pool, forks, handles @ ..]) => fork_storm(actor, pool, forks, handles),
        ("begin", [control]) => begin(actor, control),
        ("produce", [pool, control, cycles]) => produce(actor, pool, control, cycles),
        ("consume", [control, cycles]) => consume(actor, control, cycles),
        ("race-produce", [pool, control, milliseconds]) => race_produce(actor, pool, control, milliseconds),
        ("race-consume", [control, milliseconds]) => race_consume(actor, control, milliseconds),
        ("cycle", [handle, cycles]) => cycle(handle, cycles),
        ("background-open", [handle]) => background_open(handle),
        _ => return None,
    })
}

/// Returns the next number of a linear congruential generator.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Parses words of the form `seed=handle`.
fn targets(words: &[&str]) -> Result<Vec<(u64, Handle)>, Failure> {
    let target = |word: &&str| {
        let (seed, text) = word.split_once('=').ok_or_else(|| Failure::unknown(word))?;
        Ok((seed.parse()?, text.parse()?))
    };
    words.iter().map(target).collect()
}

fn content_is(mapping: &Mapping<'_>, seed: u64) -> bool {
    let mut content = vec![0; mapping.len()];
    mapping.read(0, &mut content).is_ok() && holds(&content, seed)
}

/// Opens, checks, evicts and closes the same handles in several threads. Answers with the number of
/// opens.
fn open_storm(threads: &str, rounds: &str, words: &[&str]) -> Answer {
    let (threads, rounds): (u64, u64) = (threads.parse()?, rounds.parse()?);
    let targets = targets(words)?;
    let importer = umf::importer()?;
    let run = |thread: u64| -> Result<u64, Failure> {
        let mut state = thread + 1;
        let mut held: Vec<(u64, Mapping<'static>)> = Vec::new();
        for round in 0..rounds {
            let (seed, handle) = &targets[next(&mut state) as usize % targets.len()];
            let access =
                if next(&mut state).is_multiple_of(4) { Access::ReadOnly } else { Access::ReadWrite };
            held.push((*seed, importer.open_bytes(handle.as_bytes(), access)?));
            // Keeps up to three open, checks one and closes one.
            let (seed, mapping) = &held[next(&mut state) as usize % held.len()];
            if !content_is(mapping, *seed) {
                return Err(Failure::new("WrongContent", format!("round {round}, seed {seed}")));
            }
            if held.len() == 3 {
                held.swap_remove(next(&mut state) as usize % 3);
            }
            if next(&mut state).is_multiple_of(64) {
                importer.evict_idle();
            }
        }
        Ok(rounds)
    };
    sum(threads, &run)
}

fn sum(threads: u64, run: &(impl Fn(u64) -> Result<u64, Failure> + Sync)) -> Answer {
    let mut total = 0;
    let results: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        started.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    for result in results {
        total += result.map_err(|_| Failure::new("Panic", "in a thread"))??;
    }
    Ok(total.to_string())
}

/// Allocates, exports, opens, checks and frees a block. A live block must have its content, and a
/// freed one must be stale.
fn one_export(pool: &Pool, state: &mut u64) -> Result<(), Failure> {
    let seed = next(state);
    let size = 1 + next(state) as usize % 5000;
    let block = pool.allocate(size)?;
    fill(block.view()?, seed);
    // The export is in use until the block is freed or until the export is dropped. The cache must
    // evict neither.
    let keeps = next(state).is_multiple_of(2);
    let export = block.export()?;
    let handle = *export.handle();
    let export = if keeps {
        block.handle()?;
        None
    } else {
        Some(export)
    };
    {
        let mapping = umf::open(&handle)?;
        if !mapping.is_current() || !content_is_part(&mapping, seed, size) {
            return Err(Failure::new("WrongContent", format!("seed {seed}")));
        }
    }
    drop(export);
    drop(block);
    match umf::open(&handle) {
        Err(umf::Error::Ipc(umf::ipc::Error::Stale { .. })) => Ok(()),
        other => Err(Failure::new("NotStale", format!("{other:?}"))),
    }
}

fn content_is_part(mapping: &Mapping<'_>, seed: u64, size: usize) -> bool {
    let mut content = vec![0; size];
    mapping.len() >= size && mapping.read(0, &mut content).is_ok() && holds(&content, seed)
}

/// Exports and frees blocks of the same pool in several threads.
fn export_storm(actor: &ActorState, pool: &str, threads: &str, rounds: &str) -> Answer {
    let (threads, rounds): (u64, u64) = (threads.parse()?, rounds.parse()?);
    let pool = actor.pool(pool)?;
    sum(threads, &|thread| {
        let mut state = thread + 77;
        (0..rounds).try_for_each(|_| one_export(pool, &mut state)).map(|()| rounds)
    })
}

/// Forks repeatedly while threads export and open. Each child does the same with its own pool.
fn fork_storm(actor: &ActorState, pool: &str, forks: &str, words: &[&str]) -> Answer {
    let forks: u64 = forks.parse()?;
    let pool = actor.pool(pool)?;
    let targets = targets(words)?;
    let stop = AtomicBool::new(false);
    let work = |thread: u64| -> Result<u64, Failure> {
        let mut state = thread + 7;
        let mut rounds = 0;
        while !stop.load(Ordering::Relaxed) {
            one_export(pool, &mut state)?;
            for (seed, handle) in &targets {
                if !content_is(&umf::open(handle)?, *seed) {
                    return Err(Failure::new("WrongContent", format!("seed {seed}")));
                }
            }
            rounds += 1;
        }
        Ok(rounds)
    };
    let in_child = || -> Result<(), Failure> {
        match pool.allocate(64) {
            Err(umf::Error::Memory(umf_core::Error::Frozen { .. })) => {}
            other => return Err(Failure::new("NotFrozen", format!("{other:?}"))),
        }
        for (seed, handle) in &targets {
            if !content_is(&umf::open(handle)?, *seed) {
                return Err(Failure::new("WrongContent", format!("seed {seed} in a child")));
            }
        }
        let pool = Pool::shared()?;
        (0..20).try_for_each(|round| one_export(&pool, &mut (round + 1)))
    };
    let mut failed = None;
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..2).map(|thread| scope.spawn(move || work(thread))).collect();
        for _ in 0..forks {
            // SAFETY: umf and the allocator have fork handlers, so that the child can use both.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let code = match in_child() {
                    Ok(()) => 0,
                    Err(failure) => {
                        eprintln!("in a forked child: {failure}");
                        1
                    }
                };
                // SAFETY: ends the child without running exit handlers of the parent.
                unsafe { libc::_exit(code) };
            }
            let ended = wait_for(pid);
            if !matches!(&ended, Ok(status) if status == "0") {
                failed = Some(ended.map_or_else(|failure| failure, |status| Failure::new("Child", status)));
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            match thread.join() {
                Ok(Ok(count)) => rounds += count,
                Ok(Err(failure)) => failed = Some(failure),
                Err(_) => failed = Some(Failure::new("Panic", "in a thread")),
            }
        }
    });
    failed.map_or(Ok(rounds.to_string()), Err)
}

// Offsets in a control block: the turn, the number of the handle, the sleeping processes, the
// handle.
const TURN: usize = 0;
const AFTER: usize = 8;
const SLEEPERS: usize = 16;
const HANDLE: usize = 64;

/// Limit for one turn of the other process, which is a few system calls.
const TURN_LIMIT: Duration = Duration::from_secs(10);

/// Returns the word at an offset of a control block.
fn number(memory: umf::View<'_>, offset: usize) -> &AtomicU64 {
    memory.cast::<u64>().unwrap().atomic(offset / 8).unwrap()
}

/// A word in shared memory by which two processes take turns.
struct Turns<'m> {
    memory: umf::View<'m>,
}

impl Turns<'_> {
    fn turn(&self) -> &AtomicU64 {
        number(self.memory, TURN)
    }

    /// The number of processes that sleep until their turn.
    fn sleepers(&self) -> &AtomicU64 {
        number(self.memory, SLEEPERS)
    }

    /// Waits for a turn: spins, then sleeps, as a process that spins takes the processor from the
    /// other on a busy machine. Returns an error if the other process failed, or if a turn takes
    /// longer than [`TURN_LIMIT`].
    fn wait(&self, turn: u64) -> Result<(), Failure> {
        let mut patience = None;
        for tries in 0_u32.. {
            let now = self.turn().load(Ordering::Acquire);
            if now == turn {
                return Ok(());
            }
            if now == u64::MAX {
                return Err(Failure::new("OtherSide", "the other process failed"));
            }
            if tries < 4096 {
                std::hint::spin_loop();
                continue;
            }
            if patience.get_or_insert_with(|| Patience::new(TURN_LIMIT)).next_wait().is_none() {
                return Err(Failure::new("OtherSide", format!("turn {now}, waiting for {turn}")));
            }
            self.sleepers().fetch_add(1, Ordering::SeqCst);
            // The other process reads `sleepers` after it stores the turn.
            if self.turn().load(Ordering::SeqCst) == now {
                self.futex(libc::FUTEX_WAIT, now as u32);
            }
            self.sleepers().fetch_sub(1, Ordering::SeqCst);
        }
        unreachable!("the limit ends the wait");
    }

    /// Gives the turn to the other process.
    fn pass(&self, turn: u64) {
        self.turn().store(turn, Ordering::SeqCst);
        if self.sleepers().load(Ordering::SeqCst) != 0 {
            self.futex(libc::FUTEX_WAKE, 2);
        }
    }

    /// Sleeps on the low half of the turn for at most 100 ms, or wakes the process that sleeps.
    fn futex(&self, operation: i32, value: u32) {
        let limit = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let word = self.turn().as_ptr().cast::<u32>();
        // SAFETY: the word lies in the block that the view borrows; the limit outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, word, operation, value, &raw const limit) };
    }

    /// Runs `step` at each of this process's turns: the even ones if `parity` is 0, the odd ones if
    /// it is 1.
    fn run(
        &self,
        cycles: u64,
        mut step: impl FnMut(u64) -> Result<(), Failure>,
        parity: u64,
    ) -> Result<(), Failure> {
        for cycle in 0..cycles {
            let result = self.wait(2 * cycle + parity).and_then(|()| step(cycle));
            if result.is_err() {
                self.pass(u64::MAX);
                return result;
            }
            self.pass(2 * cycle + parity + 1);
        }
        Ok(())
    }
}

/// Gives the first turn to [`produce`]. Must run before [`produce`] and [`consume`].
fn begin(actor: &ActorState, control: &str) -> Answer {
    let control = actor.block(control)?;
    // SAFETY: a live block of shared memory, which this command does not free.
    let memory = unsafe { umf::View::new(control.address.as_ptr().unwrap(), control.size) }?;
    Turns { memory }.turn().store(0, Ordering::Release);
    Ok(String::new())
}

/// Allocates, exports and frees blocks, in turns with [`consume`] in another process. Answers with
/// the number of different addresses.
fn produce(actor: &ActorState, pool: &str, control: &str, cycles: &str) -> Answer {
    let cycles: u64 = cycles.parse()?;
    let control = actor.block(control)?;
    let pool = actor.pool(pool)?;
    // SAFETY: a live block of shared memory, which this command does not free.
    let memory = unsafe { umf::View::new(control.address.as_ptr().unwrap(), control.size) }?;
    let turns = Turns { memory };
    let mut live: Option<umf::Block<'_>> = None;
    let mut addresses = std::collections::HashSet::new();
    turns.run(
        cycles,
        |cycle| {
            // The consumer has opened this block. From here on it is stale.
            drop(live.take());
            let block = pool.allocate(192)?;
            addresses.insert(block.address());
            block.write(0, &content(block.len(), cycle))?;
            let handle = if cycle % 2 == 0 { block.handle()? } else { *block.export()?.handle() };
            turns.memory.range(HANDLE..HANDLE + 256).unwrap().copy_from(handle.as_bytes());
            live = Some(block);
            Ok(())
        },
        0,
    )?;
    turns.wait(2 * cycles)?;
    Ok(addresses.len().to_string())
}

/// Opens each handle of [`produce`] and checks the content. The previous handle and the previous
/// mapping must be stale.
fn consume(actor: &ActorState, control: &str, cycles: &str) -> Answer {
    let cycles: u64 = cycles.parse()?;
    let mapping = actor.mappings.get(control).ok_or_else(|| Failure::unknown(control))?;
    let turns = Turns { memory: mapping.view()? };
    let importer = umf::importer()?;
    let mut before: Option<([u8; 256], Mapping<'static>)> = None;
    turns.run(
        cycles,
        |cycle| {
            let mut bytes = [0; 256];
            turns.memory.range(HANDLE..HANDLE + 256).unwrap().copy_to(&mut bytes);
            if let Some((old, mapping)) = before.take() {
                if mapping.is_current() {
                    return Err(Failure::new("NotStale", format!("the mapping, cycle {cycle}")));
                }
                match importer.open_bytes(&old, Access::ReadWrite) {
                    Err(umf::ipc::Error::Stale { .. }) => {}
                    other => return Err(Failure::new("NotStale", format!("cycle {cycle}: {other:?}"))),
                }
            }
            let mapping = importer.open_bytes(&bytes, Access::ReadWrite)?;
            if !mapping.is_current() || !content_is_part(&mapping, cycle, 192) {
                return Err(Failure::new("WrongContent", format!("cycle {cycle}")));
            }
            before = Some((bytes, mapping));
            Ok(())
        },
        1,
    )?;
    Ok(cycles.to_string())
}

/// Allocates, exports and frees blocks without waiting for the consumer. The control block holds
/// the latest handle and its number twice: a reader has read a complete handle if both are equal.
fn race_produce(actor: &ActorState, pool: &str, control: &str, milliseconds: &str) -> Answer {
    let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
    let control = actor.block(control)?;
    let pool = actor.pool(pool)?;
    // SAFETY: a live block of shared memory, which this command does not free.
    let memory = unsafe { umf::View::new(control.address.as_ptr().unwrap(), control.size) }?;
    let number = |offset: usize| number(memory, offset);
    let mut cycle = 0;
    while Instant::now() < end {
        cycle += 1;
        let block = pool.allocate(192)?;
        fill(block.view()?, cycle);
        let handle = block.handle()?;
        number(AFTER).store(0, Ordering::SeqCst);
        number(TURN).store(cycle, Ordering::SeqCst);
        memory.range(HANDLE..HANDLE + 256).unwrap().copy_from(handle.as_bytes());
        number(AFTER).store(cycle, Ordering::SeqCst);
        // Varies the time until the free, so that the consumer opens some blocks in time.
        for _ in 0..cycle % 64 * 100 {
            std::hint::spin_loop();
        }
    }
    Ok(cycle.to_string())
}

/// Opens the handles of [`race_produce`], whose blocks are freed concurrently. Each must be current
/// or stale. Answers with the count of either.
fn race_consume(actor: &ActorState, control: &str, milliseconds: &str) -> Answer {
    let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
    let mapping = actor.mappings.get(control).ok_or_else(|| Failure::unknown(control))?;
    let memory = mapping.view()?;
    let number = |offset: usize| number(memory, offset).load(Ordering::SeqCst);
    let importer = umf::importer()?;
    let (mut current, mut stale) = (0_u64, 0_u64);
    while Instant::now() < end {
        let mut bytes = [0; 256];
        let cycle = number(AFTER);
        memory.range(HANDLE..HANDLE + 256).unwrap().copy_to(&mut bytes);
        if cycle == 0 || number(TURN) != cycle || number(AFTER) != cycle {
            continue;
        }
        match importer.open_bytes(&bytes, Access::ReadWrite) {
            Ok(mapping) => {
                let is_right = content_is_part(&mapping, cycle, 192);
                // The content of a block that was freed during the read is undefined.
                if mapping.is_current() && !is_right {
                    return Err(Failure::new("WrongContent", format!("cycle {cycle}")));
                }
                current += 1;
            }
            Err(umf::ipc::Error::Stale { .. }) => stale += 1,
            Err(other) => return Err(other.into()),
        }
    }
    Ok(format!("current={current} stale={stale}"))
}

/// Opens and closes a handle `cycles` times.
fn cycle(handle: &str, cycles: &str) -> Answer {
    let bytes = memory::decode(handle)?;
    let importer = umf::importer()?;
    for _ in 0..cycles.parse::<u64>()? {
        importer.open_bytes(&bytes, Access::ReadWrite)?;
    }
    Ok(String::new())
}

/// Opens a handle in a new thread, while the actor executes further commands.
fn background_open(handle: &str) -> Answer {
    let bytes = memory::decode(handle)?;
    std::thread::spawn(move || {
        drop(umf::importer().map(|importer| importer.open_bytes(&bytes, Access::ReadWrite).is_ok()))
    });
    Ok(String::new())
}
