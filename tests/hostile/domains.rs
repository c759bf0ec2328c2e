//! Workers with domains: objects keep their content after their creator has ended.
//!
//! A worker joins a domain and starts another process that creates objects in it. The worker
//! registers the objects, kills the creator, and checks their content until it drops them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use umf::domain::{Domain, DomainSettings, Object, ObjectId};
use umf_tests::Rng;

use crate::checker::{Guarantee, violation};
use crate::content;
use crate::shared::{self, Activity, Counter, WorkerState, count};
use crate::worker::{Assignment, run_tag};

const KIND: u32 = 7;
/// Number of objects that a creator makes, unless it is killed before.
const OBJECTS: u64 = 12;

/// Starts this program as a peer, with pipes for its input and output. The peer dies with the
/// caller.
pub fn start_peer(mode: &str, run: u32, arguments: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(mode).arg(run_tag(run)).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    // SAFETY: the closure makes one system call, which affects the child only.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn()
}

/// Kills and reaps a peer.
pub fn kill(mut peer: Child) {
    // The peer may have ended.
    let _ = peer.kill();
    let _ = peer.wait();
    count(Counter::Kills);
}

/// Runs the worker until `end`.
pub fn run(assignment: &Assignment, random: &mut Rng, end: Instant) {
    let shared = shared::get();
    let state = &shared.workers[assignment.identity.index];
    let name = format!("hostile-{}-{}", assignment.run, assignment.identity.incarnation);
    state.tick(0, Activity::Domain);
    let domain = match Domain::join(&name, DomainSettings::default()) {
        Ok(domain) => domain,
        Err(error) => return violation(Guarantee::Domain, format_args!("joining a domain: {error}")),
    };
    let mut kept: Vec<(u64, Object)> = Vec::new();
    while !shared.has_stopped() && Instant::now() < end {
        count(Counter::Rounds);
        if let Err(error) = round(assignment, state, random, &domain, &mut kept) {
            violation(Guarantee::Domain, error);
        }
        kept.iter().for_each(|(id, object)| check(*id, object, "after its creator ended"));
        kept.truncate(random.below(8) as usize);
    }
    drop(kept);
    let left = domain.objects().map(|objects| objects.len());
    if !matches!(left, Ok(0)) {
        violation(Guarantee::Domain, format_args!("all objects were dropped, and the domain has {left:?}"));
    }
    state.tick(0, Activity::Ended);
}

/// Starts a creator, registers its objects, and kills it.
fn round(
    assignment: &Assignment,
    state: &WorkerState,
    random: &mut Rng,
    domain: &Domain,
    kept: &mut Vec<(u64, Object)>,
) -> Result<(), String> {
    state.tick(0, Activity::Domain);
    let arguments = [domain.name().to_owned(), random.next_u64().to_string()];
    let mut peer = start_peer("domain-peer", assignment.run, &arguments)
        .map_err(|error| format!("a creator: {error}"))?;
    let lines = peer.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let before = kept.len();
    let mut outcome = Ok(());
    for line in lines.take(1 + random.below(OBJECTS) as usize) {
        state.tick(0, Activity::Domain);
        let Some((id, number)) = line.ok().as_deref().and_then(parse) else { break };
        match domain.register(number, KIND) {
            Ok(object) => kept.push((id, object)),
            Err(error) => outcome = Err(format!("registering an object of a live creator: {error}")),
        }
        if random.one_in(2) {
            kept.iter().for_each(|(id, object)| check(*id, object, "while its creator lives"));
        }
    }
    kill(peer);
    if kept.len() == before && outcome.is_ok() {
        outcome = Err("a creator made no object".to_owned());
    }
    outcome
}

fn parse(line: &str) -> Option<(u64, ObjectId)> {
    let (id, number) = line.split_once(' ')?;
    Some((id.parse().ok()?, number.parse().ok()?))
}

fn check(id: u64, object: &Object, when: &str) {
    let mut copied = vec![0; object.len()];
    if let Err(error) = object.view().map(|view| view.copy_to(&mut copied)) {
        return violation(Guarantee::Domain, format_args!("object {} {when}: {error}", object.id()));
    }
    count(Counter::DomainObjects);
    if let Err(mismatch) = content::compare_bytes(&copied, id, false) {
        let what = content::describe(mismatch, id + 1);
        violation(Guarantee::Domain, format_args!("object {} {when}: {what}", object.id()));
    }
}

/// Runs the creator: creates and fills objects, prints their numbers, and waits to be killed.
pub fn run_peer(arguments: &[String]) -> i32 {
    let [_, name, seed] = arguments else { return 2 };
    let mut random = Rng::new(seed.parse().unwrap_or(0));
    let Ok(domain) = Domain::join(name, DomainSettings::default()) else { return 3 };
    let mut objects = Vec::new();
    for _ in 0..OBJECTS {
        let id = random.next_u64() >> 24;
        let Ok(object) = domain.create(1 + random.below(100_000) as usize, KIND) else { return 4 };
        let Ok(view) = object.view() else { return 4 };
        view.copy_from(&content::bytes(id, object.len() as u64));
        if writeln!(std::io::stdout(), "{id} {}", object.id()).is_err() {
            return 0;
        }
        objects.push(object);
    }
    // Waits until the worker kills this process or closes the pipe.
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    0
}
