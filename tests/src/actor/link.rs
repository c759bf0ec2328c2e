//! Commands for links, meshes and their messages, from and to private memory or blocks of pools.

mod meshes;
mod ranks;
mod remote;
mod traffic;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umf::Pool;
use umf::link::{Endpoint, Engine, Error, Link, Loan, Memory, Registration, TagMatch};

use crate::memory::{ActorState, content, holds};
use crate::stress::next;
use crate::{Answer, Failure};

/// Endpoints, links, communicators and meshes, by the names that commands give.
#[derive(Default)]
pub(crate) struct Links {
    endpoints: HashMap<String, Endpoint>,
    links: HashMap<String, Link>,
    /// Memory that was handed over, with the name of its link.
    lent: Vec<(String, Loan<'static>)>,
    /// Registered memory, with the name of its link.
    ranges: Vec<(String, Registration<'static>)>,
    communicators: ranks::Communicators,
    meshes: meshes::Meshes,
    /// Number of forked children that were killed at a failpoint.
    killed: u64,
}

pub(crate) fn execute(all: &mut Links, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("link-bind", [name]) => umf::link::bind().map_err(Failure::from).map(|it| all.endpoint(name, it)),
        ("link-bind", [name, "named", public]) => {
            umf::link::named(public).map_err(Failure::from).map(|endpoint| all.endpoint(name, endpoint))
        }
        ("link-unbind", [name]) => Ok(all.endpoints.remove(*name).is_some().to_string()),
        ("link-accept", [endpoint, ms, "->", name]) => accept(all, endpoint, ms, name),
        ("link-connect", [address, ms, "->", name]) => connect(all, address, ms, name),
        ("link-drop", [name]) => {
            all.lent.retain(|(link, _)| link != name);
            all.ranges.retain(|(link, _)| link != name);
            Ok(all.links.remove(*name).is_some().to_string())
        }
        ("link-timeout", [name, ms]) => all.link(name).and_then(|link| {
            link.set_timeout(milliseconds(ms)?);
            Ok(String::new())
        }),
        ("link-send", [name, tag, size, seed]) => send(all, name, tag, size, seed),
        ("link-recv", [name, tag, capacity, seed]) => receive(all, name, tag, capacity, seed),
        ("link-lend", [name, tag, size, seed]) => lend(all, name, tag, size, seed),
        ("link-lent", [name]) => {
            let (mut released, mut pending) = (0, 0);
            for (_, lent) in all.lent.iter().filter(|(link, _)| link == name) {
                if lent.is_returned() { released += 1 } else { pending += 1 }
            }
            Ok(format!("released={released} pending={pending}"))
        }
        ("link-check-alive", [name]) => all.link(name).and_then(|link| {
            link.check_alive()?;
            Ok(String::new())
        }),
        ("link-engines", [name]) => all.link(name).map(|link| link.engines().to_string()),
        ("link-statistics", [name]) => all.link(name).map(|link| {
            let all = link.statistics();
            let by = Engine::ALL.map(|engine| format!("{engine}={}", all.received_by(engine).messages));
            let refused = format!("refused-cma={} refused-mapped={}", all.refused_cma, all.refused_mapped);
            format!("sent={} {} viewed={} {refused}", all.sent.messages, by.join(" "), all.viewed.messages)
        }),
        // Sends and receives `count` messages at the same time, or until the link ends.
        ("link-traffic", [name, seed, peer_seed, count]) => match all.links.remove(*name) {
            Some(link) => traffic::both_ways(link, seed, peer_seed, count),
            None => Err(Failure::unknown(name)),
        },
        ("link-watch", [name]) => all.link(name).and_then(|link| {
            link.event_fd()?;
            link.arm()?;
            Ok(String::new())
        }),
        // Sends a message that the peer does not receive, and withdraws it after a timeout.
        ("link-withdraw", [name]) => all.link(name).and_then(|link| {
            link.set_timeout(Some(Duration::from_millis(5)));
            let sent = link.send(0, &vec![1; 1 << 20]);
            link.set_timeout(None);
            match sent {
                Err(Error::TimedOut { .. }) => Ok(String::new()),
                other => Err(Failure::new("Sent", format!("{other:?}"))),
            }
        }),
        ("link-child", [name]) => child_is_refused(all, name),
        ("children-killed-of-links", []) => Ok(all.killed.to_string()),
        ("link-scribble", [seed, ms]) => scribble(seed, ms),
        _ => {
            return remote::execute(all, command, words)
                .or_else(|| ranks::execute(&mut all.communicators, command, words))
                .or_else(|| meshes::execute(&mut all.meshes, command, words));
        }
    })
}

impl Links {
    fn endpoint(&mut self, name: &str, endpoint: Endpoint) -> String {
        let address = endpoint.address().to_string();
        self.endpoints.insert(name.to_owned(), endpoint);
        address
    }

    fn link(&mut self, name: &str) -> Result<&mut Link, Failure> {
        self.links.get_mut(name).ok_or_else(|| Failure::unknown(name))
    }
}

fn milliseconds(text: &str) -> Result<Option<Duration>, Failure> {
    let count: u64 = text.parse()?;
    Ok((count != 0).then(|| Duration::from_millis(count)))
}

fn accept(all: &mut Links, endpoint: &str, ms: &str, name: &str) -> Answer {
    let endpoint = all.endpoints.get(endpoint).ok_or_else(|| Failure::unknown(endpoint))?;
    let link = endpoint.accept(milliseconds(ms)?)?;
    let pid = link.peer_pid();
    all.links.insert(name.to_owned(), link);
    Ok(pid.to_string())
}

/// Connects to an address, or to `name:<name>`.
fn connect(all: &mut Links, address: &str, ms: &str, name: &str) -> Answer {
    let address = match address.strip_prefix("name:") {
        Some(public) => umf::link::builder()?.address_of(public)?,
        None => address.parse().map_err(|error| Failure::new("Address", error))?,
    };
    let link = umf::link::connect(&address, milliseconds(ms)?)?;
    let pid = link.peer_pid();
    all.links.insert(name.to_owned(), link);
    Ok(pid.to_string())
}

/// Forks a child, in which each operation on the link must fail. The child may be killed at a
/// failpoint.
fn child_is_refused(all: &mut Links, name: &str) -> Answer {
    let link = all.link(name)?;
    let mut into = [0];
    let mut receive = link.start_recv(1 << 41, &mut into);
    // SAFETY: umf and the allocator have fork handlers, so that the child can use both; it then
    // ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = [
            link.check_alive(),
            link.send(0, &[1]),
            link.progress(),
            link.probe(TagMatch::ANY).map(drop),
            link.recv_view(TagMatch::ANY).map(drop),
            link.test_recv(&mut receive).map(drop),
            link.finish(&mut [], core::slice::from_mut(&mut receive)),
        ];
        let are_refused = refused.into_iter().all(|refused| matches!(refused, Err(Error::Forked)));
        // SAFETY: ends the child without running exit handlers of the parent.
        unsafe { libc::_exit(i32::from(!are_refused)) };
    }
    if pid < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    match crate::process::wait_for(pid)?.as_str() {
        "0" => Ok(String::new()),
        "9" => {
            all.killed += 1;
            Ok("killed".to_owned())
        }
        status => Err(Failure::new(
            "Child",
            format!("an operation on its parent's link succeeded, or it ended: {status}"),
        )),
    }
}

fn send(all: &mut Links, name: &str, tag: &str, size: &str, seed: &str) -> Answer {
    let bytes = content(size.parse()?, seed.parse()?);
    all.link(name)?.send(tag.parse()?, &bytes)?;
    Ok(String::new())
}

/// Receives a message. Answers with its length, its engine, and whether the content is right.
fn receive(all: &mut Links, name: &str, tag: &str, capacity: &str, seed: &str) -> Answer {
    let mut bytes = vec![0; capacity.parse()?];
    let wanted = if tag == "any" { TagMatch::ANY } else { TagMatch::tag(tag.parse()?) };
    let received = all.link(name)?.recv(wanted, &mut bytes)?;
    let same = holds(&bytes[..received.length], seed.parse()?);
    Ok(format!("{} {} {}", received.length, received.engine, if same { "same" } else { "different" }))
}

/// Allocates memory that is never freed.
fn memory(size: usize) -> Result<&'static Memory<'static>, Failure> {
    let pool: &'static Pool = Box::leak(Box::new(Pool::shared()?));
    let block = Box::leak(Box::new(pool.allocate(size)?));
    Ok(Box::leak(Box::new(block.link_memory()?)))
}

fn lend(all: &mut Links, name: &str, tag: &str, size: &str, seed: &str) -> Answer {
    let memory = memory(size.parse()?)?;
    crate::memory::fill(memory.slice(), seed.parse()?);
    let lent = all.link(name)?.hand_over(tag.parse()?, memory)?;
    all.lent.push((name.to_owned(), lent));
    Ok(String::new())
}

/// Executes a command whose message comes from or goes to a block of the actor's pools.
pub(crate) fn execute_with_blocks(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("link-send-block", [name, tag, pool, block]) => {
            with_block_memory(actor, pool, block, |actor, memory| {
                actor.links.link(name)?.send(tag.parse()?, memory)?;
                Ok(String::new())
            })
        }
        // Answers with length and engine.
        ("link-recv-block", [name, tag, pool, block]) => {
            with_block_memory(actor, pool, block, |actor, memory| {
                let received = actor.links.link(name)?.recv(tag.parse::<u64>()?, memory)?;
                Ok(format!("{} {}", received.length, received.engine))
            })
        }
        _ => return None,
    })
}

/// Runs `run` with a block as link memory, including the host access of its provider.
fn with_block_memory(
    actor: &mut ActorState,
    pool: &str,
    block: &str,
    run: impl FnOnce(&mut ActorState, &Memory<'_>) -> Answer,
) -> Answer {
    let raw = actor.block(block)?;
    let provider = actor.pool(pool)?.provider().clone();
    let handle = crate::memory::handle(raw.address)?;
    let pointer = raw.address.as_ptr().ok_or_else(|| Failure::new("Inaccessible", block))?;
    // SAFETY: the block is live during the command, which frees nothing.
    let slice = unsafe { umf::View::new(pointer, raw.size) }?;
    let memory = Memory::new(&handle, slice)?.with_host_access(provider.host_access());
    run(actor, &memory)
}

/// Overwrites the memory of all links for the given time with small numbers, which are plausible
/// counts and indices, and with random ones. Answers with the number of words.
fn scribble(seed: &str, ms: &str) -> Answer {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let ranges: Vec<(usize, usize)> = maps
        .lines()
        // These mappings hold what this side sends and the words on which both sides sleep. What
        // the peer sends is mapped read-only.
        .filter(|line| line.contains("/memfd:umf-link") && line.contains(" rw-s "))
        .filter_map(|line| {
            let (start, rest) = line.split_once('-')?;
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            Some((hex(start)?, hex(rest.split(' ').next()?)?))
        })
        .collect();
    if ranges.is_empty() {
        return Err(Failure::new("NoLink", "nothing to scribble over"));
    }
    let end = Instant::now() + Duration::from_millis(ms.parse()?);
    let (mut state, mut count) = (seed.parse::<u64>()?, 0_u64);
    while Instant::now() < end {
        for _ in 0..1000 {
            let (start, end) = ranges[next(&mut state) as usize % ranges.len()];
            // Most control words (headers, descriptors, consumed counts) are near the beginning.
            let span = (end - start) / 8;
            let limit = [512, 8192, 20_000, span][next(&mut state) as usize % 4].min(span);
            let address = start + next(&mut state) as usize % limit * 8;
            let small = next(&mut state) % 300;
            let value = match next(&mut state) % 4 {
                0 => small,
                1 => small | 1 << 32 | (next(&mut state) % 0x8000) << 40,
                2 => small | (next(&mut state) % 4) << 32 | (next(&mut state) % 9) << 48,
                _ => next(&mut state) << 33 ^ next(&mut state),
            };
            // SAFETY: an aligned word of a mapping that stays mapped as long as its link.
            let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(address) };
            word.store(value, Ordering::Relaxed);
            count += 1;
        }
        std::thread::yield_now();
    }
    Ok(count.to_string())
}
