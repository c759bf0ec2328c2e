//! Domains under random kills and long random use: the table stays correct, and nothing leaks.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use umf_tests::domain::{assert_nothing_left, name, traces};
use umf_tests::{Actor, ProcessSnapshot, actor, machine};

fn member(domain: &str) -> Actor {
    let mut actor = actor!();
    // Long enough for a machine that runs other tests.
    actor.ok(&format!("join {domain} 9000"));
    actor
}

/// Pseudo-random numbers that are equal in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Processes create, register and unregister concurrently, and half of them are killed meanwhile.
#[test]
fn kills_at_random_times_leave_table_correct() {
    let domain = name("storm");
    let mut witness = member(&domain);
    let before = ProcessSnapshot::of(&witness);
    let index = witness.ok(&format!("create {domain} 128 77 -> index"));
    let clean = ProcessSnapshot::of(&witness);
    let mut random = Random(11);
    // Objects created, objects registered, ids that were gone.
    let mut totals = [0; 3];
    for round in 0..if machine::is_long() { 300 } else { 12 } {
        let mut workers: Vec<Actor> = (0..4).map(|_| member(&domain)).collect();
        for (seed, worker) in workers.iter_mut().enumerate() {
            worker.ok(&format!("register {domain} {index} 77 -> index"));
            worker.send(&format!("domain-stress {domain} index {} 250", round * 4 + seed));
        }
        for _ in 0..2 {
            std::thread::sleep(Duration::from_micros(random.below(110_000) as u64));
            let victim = random.below(workers.len());
            workers.swap_remove(victim).kill();
        }
        for worker in &mut workers {
            let answer = worker.answer(Duration::from_secs(30)).unwrap();
            for (total, count) in totals.iter_mut().zip(answer.split(' ')) {
                *total += count.split_once('=').unwrap().1.parse::<u64>().unwrap();
            }
        }
        // The registrations of dead workers are gone, and live workers have unregistered.
        assert_eq!(witness.ok(&format!("objects {domain}")), format!("{index}:77:4096:3"), "round {round}");
        for worker in workers {
            worker.finish();
        }
        assert_eq!(witness.ok(&format!("objects {domain}")), format!("{index}:77:4096:1"));
        clean.assert_restored(&witness);
    }
    println!("created, registered, gone: {totals:?}");
    assert!(totals.iter().all(|&total| total > 0), "{totals:?}");
    witness.ok("drop-object index");
    before.assert_restored(&witness);
    witness.finish();
    assert_nothing_left(&domain);
}

/// An object of the domain as its creator made it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    id: String,
    kind: usize,
    content_seed: usize,
}

/// Processes that use a domain, and the expected state of the domain.
struct LongUse {
    domain: String,
    actors: Vec<Actor>,
    random: Random,
    /// Registered actors by object.
    live: BTreeMap<Object, BTreeSet<usize>>,
    /// Objects that were destroyed.
    dead: Vec<Object>,
    kills: u64,
}

impl LongUse {
    fn random_live(&mut self) -> Option<Object> {
        self.live.keys().nth(self.random.below(self.live.len().max(1))).cloned()
    }

    /// Removes the registrations for which `ends` returns `true` from the expected state.
    fn end_registrations(&mut self, ends: impl Fn(&Object, usize) -> bool) {
        let dead = &mut self.dead;
        self.live.retain(|object, registered| {
            registered.retain(|&actor| !ends(object, actor));
            if registered.is_empty() {
                dead.push(object.clone());
            }
            !registered.is_empty()
        });
        let surplus = self.dead.len().saturating_sub(200);
        self.dead.drain(..surplus);
    }

    /// Kills an actor and starts another in its place.
    fn replace(&mut self, victim: usize) {
        self.actors[victim].kill();
        self.actors[victim] = member(&self.domain);
        self.end_registrations(|_, actor| actor == victim);
        self.kills += 1;
    }

    fn create(&mut self, current: usize, event: usize) {
        let Self { domain, actors, random, .. } = self;
        let (size, kind) = (1 + random.below(20_000), event % 5);
        let actor = &mut actors[current];
        let id = actor.ok(&format!("create {domain} {size} {kind} -> new"));
        actor.ok(&format!("register {domain} {id} {kind} -> {id}"));
        actor.ok("drop-object new");
        actor.ok(&format!("fill-object {id} {event}"));
        let object = Object { id, kind, content_seed: event };
        assert!(!self.live.contains_key(&object) && !self.dead.contains(&object), "{object:?}");
        self.live.insert(object, BTreeSet::from([current]));
    }

    fn register(&mut self, current: usize, object: Object) {
        let Self { domain, actors, .. } = self;
        let Object { id, kind, content_seed } = &object;
        actors[current].ok(&format!("register {domain} {id} {kind} -> {id}"));
        assert_eq!(actors[current].ok(&format!("check-object {id} {content_seed}")), "same", "{object:?}");
        self.live.get_mut(&object).unwrap().insert(current);
    }

    /// An object that was destroyed cannot be registered.
    fn register_dead(&mut self, current: usize) {
        let Self { domain, actors, random, dead, .. } = self;
        let Some(Object { id, kind, .. }) = dead.get(random.below(dead.len().max(1))) else { return };
        actors[current].fails(&format!("register {domain} {id} {kind} -> x"), "NoSuchObject");
    }

    fn unregister(&mut self, current: usize, object: &Object) {
        let unregister = format!("unregister {} {}", self.domain, object.id);
        if self.live[object].contains(&current) {
            self.actors[current].ok(&unregister);
            self.actors[current].ok(&format!("drop-object {}", object.id));
            self.end_registrations(|other, actor| other == object && actor == current);
        } else {
            self.actors[current].fails(&unregister, "NotRegistered");
        }
    }

    fn event(&mut self, event: usize) {
        let current = self.random.below(self.actors.len());
        match self.random.below(10) {
            _ if event.is_multiple_of(50) => {
                // Actor 0 is never killed, and sometimes all others are.
                let one = current.max(1);
                let victims = if event.is_multiple_of(2500) { 1..self.actors.len() } else { one..one + 1 };
                for victim in victims {
                    self.replace(victim);
                }
            }
            0..=2 if self.live.len() < 150 => self.create(current, event),
            6 => self.register_dead(current),
            choice => {
                let Some(object) = self.random_live() else { return };
                if (3..=5).contains(&choice) {
                    self.register(current, object);
                } else {
                    self.unregister(current, &object);
                }
            }
        }
    }

    /// Compares the domain's list of objects and of the numbers of registrants with the expected
    /// state.
    fn check_list(&mut self, event: usize) {
        let text = self.actors[0].ok(&format!("objects {}", self.domain));
        let parse = |object: &str| {
            let (id, rest) = object.split_once(':')?;
            Some((id.to_owned(), rest.rsplit(':').next()?.parse().ok()?))
        };
        let mut listed: Vec<(String, usize)> = text.split(' ').filter_map(parse).collect();
        listed.sort_unstable();
        let mut expected: Vec<_> =
            self.live.iter().map(|(object, registered)| (object.id.clone(), registered.len())).collect();
        expected.sort_unstable();
        assert_eq!(listed, expected, "event {event}");
    }
}

/// Returns a field of `/proc/meminfo`, in KiB.
fn memory_of_system(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// Random creates, registrations and kills over a long time. The domain must agree with the
/// expected state, and hold in the end what it held at the start.
#[test]
fn long_random_use_leaks_nothing() {
    let events = if machine::is_long() { 100_000 } else { 3_000 };
    let domain = name("long");
    let mut long = LongUse {
        actors: (0..6).map(|_| member(&domain)).collect(),
        domain: domain.clone(),
        random: Random(7),
        live: BTreeMap::new(),
        dead: Vec::new(),
        kills: 0,
    };
    // The growth of actor 0 is measured.
    long.actors[0].ok(&format!("cycle-objects {domain} 300"));
    let before = ProcessSnapshot::of(&long.actors[0]);
    let resident = long.actors[0].number("counts", "rss");
    let shared = memory_of_system("Shmem");
    let traces_before = traces(&domain);
    for event in 1..=events {
        long.event(event);
        if event.is_multiple_of(500) {
            long.check_list(event);
        }
    }
    let LongUse { mut actors, live, kills, .. } = long;
    let mut first = actors.swap_remove(0);
    for (object, _) in live.iter().filter(|(_, registered)| registered.contains(&0)) {
        first.ok(&format!("drop-object {}", object.id));
    }
    for actor in actors {
        actor.finish();
    }
    assert_eq!(first.ok(&format!("objects {domain}")), "");
    before.assert_restored(&first);
    let resident_after = first.number("counts", "rss");
    println!(
        "{events} events, {kills} kills: {before:?}; resident {resident} kB, then {resident_after} kB; shared memory of \
         the machine {shared} kB, then {} kB; traces {traces_before}, then {}",
        memory_of_system("Shmem"),
        traces(&domain),
    );
    assert!(resident_after < resident + 1024, "resident {resident} kB, then {resident_after} kB");
    first.finish();
    assert_nothing_left(&domain);
}
