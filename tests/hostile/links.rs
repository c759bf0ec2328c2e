//! Workers with links. Messages arrive as they were sent. Views of handed-over memory keep their
//! content until they are dropped, also after the peer was killed.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use umf::Pool;
use umf::link::{Error, Link, LinkAddress, TagMatch, View};
use umf_tests::Rng;

use crate::checker::{Guarantee, violation};
use crate::content;
use crate::domains::{kill, start_peer};
use crate::shared::{self, Activity, Counter, WorkerState, count};
use crate::worker::Assignment;

/// Maximum number of open views.
const VIEWS: usize = 6;
/// Maximum number of blocks that a peer hands over before it waits until they are released.
const BATCH: usize = 8;
/// Maximum length of a message.
const MAX_LENGTH: u64 = 200_000;
const TIMEOUT: Duration = Duration::from_millis(200);
/// Bit of a tag: the message is handed-over memory. The other bits are the number of its content.
const HANDED_OVER: u64 = 1;

/// Runs the worker until `end`.
pub fn run(assignment: &Assignment, random: &mut Rng, end: Instant) {
    let shared = shared::get();
    let state = &shared.workers[assignment.identity.index];
    while !shared.has_stopped() && Instant::now() < end {
        count(Counter::Rounds);
        state.tick(0, Activity::Link);
        if let Err(error) = round(assignment, state, random) {
            violation(Guarantee::Link, error);
        }
    }
    state.tick(0, Activity::Ended);
}

/// Connects to one peer, which is killed during its messages.
fn round(assignment: &Assignment, state: &WorkerState, random: &mut Rng) -> Result<(), String> {
    let endpoint = umf::link::bind().map_err(|error| format!("an endpoint: {error}"))?;
    let arguments = [endpoint.address().to_string(), random.next_u64().to_string()];
    let mut peer =
        start_peer("link-peer", assignment.run, &arguments).map_err(|error| format!("a peer: {error}"))?;
    // The peer prints a line when it is about to connect, however long it takes to start.
    let mut line = String::new();
    let ready = peer.stdout.take().map(BufReader::new).map(|mut output| output.read_line(&mut line));
    if !matches!(ready, Some(Ok(1..))) {
        kill(peer);
        return Err("a peer ended before it connected".to_owned());
    }
    let linked = (0..100).find_map(|_| {
        state.tick(0, Activity::Link);
        match endpoint.accept(Some(TIMEOUT)) {
            Err(Error::TimedOut { .. }) => None,
            outcome => Some(outcome),
        }
    });
    match linked {
        Some(Ok(link)) => receive(link, state, random, || kill(peer)),
        Some(Err(error)) => {
            kill(peer);
            Err(format!("accepting a link: {error}"))
        }
        None => {
            kill(peer);
            Err("a peer did not connect".to_owned())
        }
    }
}

/// Receives messages, calls `kill_peer` meanwhile, receives the messages that arrived before, and
/// checks the views.
fn receive(
    mut link: Link,
    state: &WorkerState,
    random: &mut Rng,
    kill_peer: impl FnOnce(),
) -> Result<(), String> {
    link.set_timeout(Some(TIMEOUT));
    let mut views: Vec<(u64, View)> = Vec::new();
    let mut kill_peer = Some(kill_peer);
    let mut left = 1 + random.below(200);
    let outcome = loop {
        state.tick(0, Activity::Link);
        left = left.saturating_sub(1);
        if left == 0
            && let Some(kill_peer) = kill_peer.take()
        {
            kill_peer();
        }
        match receive_one(&mut link, &mut views) {
            Ok(()) => {}
            Err(Error::TimedOut { .. }) => {
                // The peer waits until views are released.
                views.truncate(views.len() / 2);
            }
            Err(Error::PeerGone { .. } | Error::Closed { .. }) => break Ok(()),
            // The peer may free a block, or be killed, before the block is opened.
            Err(Error::Open { .. }) => {
                count(Counter::OtherRefusals);
                break Ok(());
            }
            Err(error) => break Err(format!("receiving from a peer: {error}")),
        }
        for (id, view) in &views {
            check_view(*id, view, "before it is dropped");
        }
        if views.len() > VIEWS {
            let index = random.below(views.len() as u64) as usize;
            views.swap_remove(index);
        }
    };
    if let Some(kill_peer) = kill_peer.take() {
        kill_peer();
    }
    drop(link);
    for (id, view) in &views {
        check_view(*id, view, "after its link and its sender ended");
    }
    outcome
}

fn receive_one(link: &mut Link, views: &mut Vec<(u64, View)>) -> Result<(), Error> {
    let Some(next) = link.probe(TagMatch::ANY)? else {
        std::thread::sleep(Duration::from_millis(1));
        link.check_alive()?;
        return if views.is_empty() {
            Ok(())
        } else {
            Err(Error::TimedOut { what: "a message", milliseconds: 1 })
        };
    };
    let (tag, length) = (next.tag, next.length);
    let id = tag >> 1;
    if tag & HANDED_OVER != 0 {
        views.push((id, link.recv_view(TagMatch::tag(tag))?));
        return Ok(());
    }
    let mut message = vec![0; length];
    link.recv(TagMatch::tag(tag), &mut message)?;
    count(Counter::LinkViews);
    if let Err(mismatch) = content::compare_bytes(&message, id, false) {
        let what = content::describe(mismatch, id + 1);
        violation(Guarantee::Link, format_args!("message {id} of {length} bytes: {what}"));
    }
    Ok(())
}

fn check_view(id: u64, view: &View, when: &str) {
    let mut copied = vec![0; view.len() / 8 * 8];
    count(Counter::LinkViews);
    match view.read(0, &mut copied) {
        Ok(()) => {
            if let Err(mismatch) = content::compare_bytes(&copied, id, false) {
                let what = content::describe(mismatch, id + 1);
                violation(Guarantee::Link, format_args!("view {id} of {} bytes {when}: {what}", view.len()));
            }
        }
        Err(error) => violation(Guarantee::Link, format_args!("reading a view {when}: {error}")),
    }
}

/// Runs the peer: sends messages and hands memory over, until it is killed.
pub fn run_peer(arguments: &[String]) -> i32 {
    let [_, address, seed] = arguments else { return 2 };
    let Ok(address) = address.parse::<LinkAddress>() else { return 2 };
    println!("ready");
    let mut random = Rng::new(seed.parse().unwrap_or(0));
    let Ok(pool) = Pool::shared() else { return 3 };
    let Ok(mut link) = umf::link::connect(&address, Some(Duration::from_secs(10))) else { return 4 };
    link.set_timeout(None);
    loop {
        let sent = if random.one_in(2) {
            let id = random.next_u64() >> 24;
            let message = content::bytes(id, 8 * (1 + random.below(MAX_LENGTH / 8)));
            link.send(id << 1, &message)
        } else {
            hand_over(&mut link, &pool, &mut random)
        };
        if sent.is_err() {
            return 0;
        }
    }
}

/// Hands over a few blocks, and frees them after they were released.
fn hand_over(link: &mut Link, pool: &Pool, random: &mut Rng) -> Result<(), Error> {
    let mut blocks = Vec::new();
    for _ in 0..=random.below(BATCH as u64) {
        let id = random.next_u64() >> 24;
        let size = 8 * (1 + random.below(MAX_LENGTH / 8));
        let Ok(block) = pool.allocate(size as usize) else { return Ok(()) };
        if block.write(0, &content::bytes(id, size)).is_err() {
            return Ok(());
        }
        blocks.push((id, size, block));
    }
    let mut memories = Vec::new();
    for (id, size, block) in &blocks {
        let Ok(memory) = block.link_memory() else { return Ok(()) };
        memories.push((*id, *size, memory));
    }
    let mut handovers = Vec::new();
    for (id, size, memory) in &memories {
        handovers.push(link.hand_over(id << 1 | HANDED_OVER, memory.part(0, *size as usize)?)?);
    }
    // Sometimes frees blocks without waiting. They are stale for a receiver that has not opened
    // them.
    if !random.one_in(12) {
        for handover in &handovers {
            handover.wait(None)?;
        }
    }
    drop(handovers);
    Ok(())
}
