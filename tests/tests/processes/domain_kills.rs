//! Domains under random kills and long random use: the table stays correct, and nothing leaks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

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

/// The expected state of the domain.
#[derive(Default)]
struct Model {
    /// Registered actors by object.
    live: BTreeMap<String, BTreeSet<usize>>,
    /// Objects that were destroyed.
    dead: Vec<String>,
}

impl Model {
    /// Removes the registrations for which `ends` returns `true`.
    fn end(&mut self, ends: impl Fn(&str, usize) -> bool) {
        let dead = &mut self.dead;
        self.live.retain(|number, registered| {
            registered.retain(|&actor| !ends(number, actor));
            if registered.is_empty() {
                dead.push(number.clone());
            }
            !registered.is_empty()
        });
        let surplus = self.dead.len().saturating_sub(200);
        self.dead.drain(..surplus);
    }
}

/// Returns a field of `/proc/meminfo`, in KiB.
fn memory_of_system(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// Random creates, registrations and kills over a long time. The domain must agree with the model,
/// and hold in the end what it held at the start.
#[test]
fn long_random_use_leaks_nothing() {
    let events = if machine::is_long() { 100_000 } else { 3_000 };
    let domain = name("long");
    let mut random = Random(7);
    // Actor 0 is never killed, so that its growth can be measured.
    let mut actors: Vec<Actor> = (0..6).map(|_| member(&domain)).collect();
    actors[0].ok(&format!("cycle-objects {domain} 300"));
    let before = ProcessSnapshot::of(&actors[0]);
    let resident = actors[0].number("counts", "rss");
    let shared = memory_of_system("Shmem");
    let traces_before = traces(&domain);
    let mut model = Model::default();
    let mut kills = 0;
    for event in 1..=events {
        let current = random.below(actors.len());
        let pick = |model: &Model, random: &mut Random| {
            model.live.keys().nth(random.below(model.live.len().max(1))).cloned()
        };
        match random.below(10) {
            _ if event % 50 == 0 => {
                // Sometimes all but actor 0.
                let victims =
                    if event % 2500 == 0 { 1..actors.len() } else { current.max(1)..current.max(1) + 1 };
                for victim in victims {
                    actors[victim].kill();
                    actors[victim] = member(&domain);
                    model.end(|_, actor| actor == victim);
                    kills += 1;
                }
            }
            0..=2 if model.live.len() < 150 => {
                let size = 1 + random.below(20_000);
                let number = actors[current].ok(&format!("create {domain} {size} {} -> new", event % 5));
                actors[current].ok(&format!("register {domain} {number} {} -> {number}", event % 5));
                actors[current].ok("drop-object new");
                // The model's key contains kind and content seed of the object.
                actors[current].ok(&format!("fill-object {number} {event}"));
                let number = format!("{number} {} {event}", event % 5);
                assert!(!model.live.contains_key(&number) && !model.dead.contains(&number), "{number}");
                model.live.insert(number, BTreeSet::from([current]));
            }
            3..=5 => {
                let Some(object) = pick(&model, &mut random) else { continue };
                let mut words = object.split(' ');
                let [number, kind, seed] = [(); 3].map(|()| words.next().unwrap());
                let register = format!("register {domain} {number} {kind} -> {number}");
                actors[current].ok(&register);
                assert_eq!(actors[current].ok(&format!("check-object {number} {seed}")), "same", "{object}");
                model.live.get_mut(&object).unwrap().insert(current);
            }
            6 => {
                let Some(object) = model.dead.get(random.below(model.dead.len().max(1))) else { continue };
                let (number, rest) = object.split_once(' ').unwrap();
                let kind = rest.split(' ').next().unwrap();
                actors[current].fails(&format!("register {domain} {number} {kind} -> x"), "NoSuchObject");
            }
            _ => {
                let Some(object) = pick(&model, &mut random) else { continue };
                let number = object.split(' ').next().unwrap();
                let unregister = format!("unregister {domain} {number}");
                if model.live[&object].contains(&current) {
                    actors[current].ok(&unregister);
                    actors[current].ok(&format!("drop-object {number}"));
                    model.end(|other, actor| other == object && actor == current);
                } else {
                    actors[current].fails(&unregister, "NotRegistered");
                }
            }
        }
        if event % 500 == 0 {
            let listed = actors[0].ok(&format!("objects {domain}"));
            let mut listed: Vec<_> = listed
                .split(' ')
                .filter_map(|object| {
                    Some((object.split(':').next()?, object.rsplit(':').next()?.parse().ok()?))
                })
                .collect();
            listed.sort_unstable();
            let mut expected: Vec<_> = model
                .live
                .iter()
                .map(|(object, registered)| (object.split(' ').next().unwrap(), registered.len()))
                .collect();
            expected.sort_unstable();
            assert_eq!(listed, expected, "event {event}");
        }
    }
    let left: Vec<_> = model.live.iter().filter(|(_, registered)| registered.contains(&0)).collect();
    for (object, _) in left {
        actors[0].ok(&format!("drop-object {}", object.split(' ').next().unwrap()));
    }
    let mut first = actors.swap_remove(0);
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
