//! The engine of each combination of source and destination. An engine that the settings name is
//! used or refused, and never replaced.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use umf_link::{Destination, Engine, Error, Link, LinkSettings, Memory, Source, TagMatch};

use crate::messages::{content, forced, isolated, memory, pair_with};

/// Whole pages, so that a block can be all of its file; and more than from where on both sides copy
/// by themselves.
const SIZE: usize = 80 << 10;
const GAP: usize = 3;

/// Where a message is: in one piece of private memory, a list of such, memory of a pool, a list of
/// such, a block that is all of its file and exported for reading only, and a list with more
/// entries than are told.
const FORMS: [&str; 6] = ["range", "list", "pool", "pool list", "read-only", "long list"];

/// For each engine and circumstance: a line for each form of what is sent, with a letter for each
/// form of what it is received into. `.` is carried by the engine, `s` refused to the sender, `r`
/// to the receiver, where the message stays.
const TABLE: [(Engine, &str, [&str; 6]); 13] = [
    (Engine::Inline, "", ["ssssss"; 6]),
    (Engine::Bounce, "", ["......"; 6]),
    (Engine::Bounce, "timeout", ["......"; 6]),
    (Engine::Bounce, "begun", ["......"; 6]),
    (Engine::Cma, "", ["......", "......", "......", "......", "......", "ssssss"]),
    (Engine::Cma, "timeout", ["......", "......", "......", "......", "......", "ssssss"]),
    (Engine::Cma, "begun", ["......", "......", "......", "......", "......", "ssssss"]),
    (Engine::Mapped, "", ["ssssss", "ssssss", "......", "......", "......", "ssssss"]),
    (Engine::Mapped, "timeout", ["ssssss", "ssssss", "......", "......", "......", "ssssss"]),
    (Engine::Mapped, "begun", ["ssssss", "ssssss", "......", "......", "......", "ssssss"]),
    // Lists are copied by one side.
    (Engine::Both, "", [".r.r.r", "rrrrrr", ".r.r.r", "rrrrrr", ".r.r.r", "ssssss"]),
    // The peer writes private memory, and memory exported for reading only, during calls without a
    // timeout.
    (Engine::Both, "timeout", ["rr.rrr", "rrrrrr", "rr.rrr", "rrrrrr", "rr.rrr", "ssssss"]),
    (Engine::Both, "begun", ["rrrrrr", "rrrrrr", "rrrrrr", "rrrrrr", "rrrrrr", "ssssss"]),
];

/// Offsets and lengths of the pieces of a message.
fn pieces(form: &str) -> Vec<(usize, usize)> {
    let count = match form {
        "list" | "pool list" => 5,
        "long list" => 1100,
        _ => 1,
    };
    let step = SIZE.div_ceil(count);
    (0..count)
        .map(|number| (number * (step + GAP), step.min(SIZE.saturating_sub(number * step))))
        .filter(|(_, length)| *length > 0)
        .collect()
}

/// Room for a message in any form: twice, for what is sent and what it is received into.
struct Room {
    private: [Vec<u8>; 2],
    pool: [Memory<'static>; 2],
    read_only: [Memory<'static>; 2],
}

impl Room {
    fn new() -> Self {
        Self {
            private: [vec![0; 2 * SIZE], vec![0; 2 * SIZE]],
            pool: [memory(2 * SIZE), memory(2 * SIZE)],
            read_only: [isolated(SIZE, true), isolated(SIZE, true)],
        }
    }

    fn shared(&self, form: &str, side: usize) -> Option<&Memory<'static>> {
        match form {
            "pool" | "pool list" => Some(&self.pool[side]),
            "read-only" => Some(&self.read_only[side]),
            _ => None,
        }
    }

    /// Writes all of the room for a form: pieces of `bytes`, and `rest` elsewhere.
    fn fill(&mut self, form: &str, side: usize, bytes: &[u8], rest: u8) {
        let mut all = vec![rest; self.shared(form, side).map_or(2 * SIZE, Memory::len)];
        let mut at = 0;
        for (offset, length) in pieces(form) {
            let end = bytes.len().min(at + length);
            all[offset..offset + (end - at)].copy_from_slice(&bytes[at..end]);
            at = end;
        }
        match self.shared(form, side) {
            Some(memory) => assert_eq!(memory.slice().copy_from(&all), all.len()),
            None => self.private[side] = all,
        }
    }

    fn bytes(&self, form: &str, side: usize) -> Vec<u8> {
        match self.shared(form, side) {
            Some(memory) => {
                let mut all = vec![0; memory.len()];
                memory.slice().copy_to(&mut all);
                all
            }
            None => self.private[side].clone(),
        }
    }
}

fn source<'d>(form: &str, private: &'d [u8], shared: Option<&'d Memory<'static>>) -> Source<'d> {
    let pieces = pieces(form);
    match shared {
        Some(memory) => Source::list(pieces.iter().map(|(at, length)| memory.part(*at, *length).unwrap())),
        None => Source::list(pieces.iter().map(|(at, length)| &private[*at..at + length])),
    }
}

fn destination<'d>(
    form: &str,
    mut private: &'d mut [u8],
    shared: Option<&'d Memory<'static>>,
) -> Destination<'d> {
    let pieces = pieces(form);
    if let Some(memory) = shared {
        return Destination::list(pieces.iter().map(|(at, length)| memory.part(*at, *length).unwrap()));
    }
    let (mut parts, mut passed) = (Vec::new(), 0);
    for (at, length) in pieces {
        let (_, rest) = private.split_at_mut(at - passed);
        let (part, rest) = rest.split_at_mut(length);
        parts.push(part);
        (private, passed) = (rest, at + length);
    }
    Destination::list(parts)
}

/// What came of one message, and why if it was refused.
fn outcome<'d>(
    (one, other): (&mut Link, &mut Link),
    (engine, is_begun): (Engine, bool),
    from: impl FnOnce() -> Source<'d> + Send,
    into: Destination<'d>,
) -> (char, String) {
    let is_over = AtomicBool::new(false);
    let (told, offered) = std::sync::mpsc::channel();
    let received = std::thread::scope(|scope| {
        // Ends if the other side panics, too.
        let ends = Ends(&is_over);
        scope.spawn(|| match one.start_send(7, from()) {
            Err(error) => told.send(Some(error)).unwrap(),
            Ok(mut sending) => {
                told.send(None).unwrap();
                while !is_over.load(Ordering::Relaxed) && !one.test_send(&mut sending).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        if let Some(error) = offered.recv().unwrap() {
            return Err(('s', error));
        }
        let received = if is_begun {
            let mut receiving = other.start_recv(7, into);
            loop {
                match other.test_recv(&mut receiving) {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(received)) => break Ok(received),
                    Err(error) => break Err(('r', error)),
                }
            }
        } else {
            other.recv(7, into).map_err(|error| ('r', error))
        };
        assert_eq!(other.probe(TagMatch::ANY).unwrap().is_some(), received.is_err(), "what is refused stays");
        drop(ends);
        received
    });
    match received {
        Ok(received) => {
            assert_eq!(
                (received.length, received.engine),
                (SIZE, engine),
                "obeyed or refused, never replaced"
            );
            ('.', String::new())
        }
        Err((letter, error)) => {
            assert!(matches!(&error, Error::EngineImpossible { engine: by, .. } if *by == engine), "{error}");
            // It was taken back, so that the next receive takes the next one.
            other.set_timeout(Some(Duration::from_millis(1)));
            assert!(matches!(other.recv(7, &mut vec![0; SIZE]), Err(Error::TimedOut { .. })));
            (letter, error.to_string())
        }
    }
}

struct Ends<'f>(&'f AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn forced_engine_is_used_or_refused() {
    let mut room = Room::new();
    let (_, other) = pair_with([LinkSettings::default(), LinkSettings::default()]);
    let reads = other.engines().cma().is_ok();
    for (engine, how, expected) in TABLE {
        if !reads && matches!(engine, Engine::Cma | Engine::Both) {
            println!("umf-skip: by {engine}: no process_vm_readv(2) here");
            continue;
        }
        let (mut one, mut other) = pair_with([forced(engine), forced(engine)]);
        let mut seen = [const { String::new() }; 6];
        let mut reasons = std::collections::BTreeSet::new();
        for (line, from) in FORMS.into_iter().enumerate() {
            for (column, into) in FORMS.into_iter().enumerate() {
                let bytes = content(SIZE, (6 * line + column) as u64);
                room.fill(from, 0, &bytes, 1);
                room.fill(into, 1, &[], 2);
                other.set_timeout((how == "timeout").then_some(Duration::from_secs(30)));
                let Room { private: [sent, received], pool, read_only } = &mut room;
                let shared = |form: &str, side: usize| match form {
                    "pool" | "pool list" => Some(&pool[side]),
                    "read-only" => Some(&read_only[side]),
                    _ => None,
                };
                let target = destination(into, received, shared(into, 1));
                let sent = || source(from, sent, shared(from, 0));
                let (letter, why) = outcome((&mut one, &mut other), (engine, how == "begun"), sent, target);
                if letter == '.' {
                    let came = room.bytes(into, 1);
                    room.fill(into, 1, &bytes, 2);
                    assert!(came == room.bytes(into, 1), "{engine} {how}: {from} into {into}: bytes differ");
                }
                seen[line].push(letter);
                reasons.insert(why);
            }
        }
        assert_eq!(seen, expected, "{engine} {how}: {reasons:#?}");
        let counts = [one.statistics(), other.statistics()].map(|it| (it.refused_cma, it.refused_mapped));
        assert_eq!(counts, [(0, 0); 2], "{engine} {how}: nothing was tried in vain");
    }
}

/// The sender copies its part, whatever both copy out of and into.
#[test]
fn both_engine_copies_from_both_sides() {
    const LONG: usize = 4 << 20;
    let (mut one, mut other) = pair_with([forced(Engine::Both), forced(Engine::Both)]);
    if let Err(why) = other.engines().cma() {
        println!("umf-skip: both sides copy: {why}");
        return;
    }
    other.set_timeout(None);
    let (bytes, pool) = (content(LONG, 5), [memory(LONG), memory(LONG)]);
    pool[0].slice().copy_from(&bytes);
    let mut into = vec![0; LONG];
    for (is_pool, is_into_pool) in [(false, false), (true, false), (false, true), (true, true)] {
        let before = one.statistics().pushed.bytes;
        // The chunks that a side gets are chance: in one of so many rounds both get some.
        for round in 0..500 {
            std::thread::scope(|scope| {
                let (one, pool, bytes) = (&mut one, &pool, &bytes);
                scope
                    .spawn(move || if is_pool { one.send(1, &pool[0]) } else { one.send(1, bytes) }.unwrap());
                let received = if is_into_pool { other.recv(1, &pool[1]) } else { other.recv(1, &mut into) };
                assert_eq!(received.unwrap().engine, Engine::Both);
            });
            if is_into_pool {
                pool[1].slice().copy_to(&mut into);
            }
            assert!(into == bytes, "round {round}: {is_pool} {is_into_pool}");
            if one.statistics().pushed.bytes > before {
                break;
            }
        }
        assert!(one.statistics().pushed.bytes > before, "{is_pool} {is_into_pool}: the sender never copied");
    }
    assert_eq!(one.statistics().refused_cma + one.statistics().refused_mapped, 0);
}

/// What an engine is named for is longer: a short message goes however it can when the ring is
/// full.
#[test]
fn forced_engine_accepts_short_messages() {
    for engine in [Engine::Mapped, Engine::Cma, Engine::Both, Engine::Bounce, Engine::Inline] {
        let (mut one, mut other) = pair_with([forced(engine), forced(engine)]);
        let numbers: Vec<[u8; 2]> = (0..300_u16).map(u16::to_ne_bytes).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sends: Vec<_> =
                    numbers.iter().map(|number| one.start_send(1, number).unwrap()).collect();
                one.finish(&mut sends, &mut []).unwrap();
            });
            for number in &numbers {
                let mut into = [0; 2];
                other.recv(1, &mut into).unwrap();
                assert_eq!(into, *number);
            }
        });
    }
}
