//! Commands for one-sided transfers.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use umf::link::{Engine, Error, KEY_SIZE, Link, Memory, Registration, RemoteAccess, RemoteKey, Source, Span};
use umf_tests::Rng;

use super::{Links, content, memory};
use crate::memory::holds;
use crate::{Answer, Failure};

pub(super) fn execute(all: &mut Links, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("link-expose", [name, size, access]) => expose(all, name, size, access),
        ("link-unexpose", [name]) => {
            all.ranges.retain(|(link, _)| link != name);
            Ok(String::new())
        }
        // Answers with the engine.
        ("link-put", [name, key, offset, size, seed]) => put(all, name, key, [offset, size, seed]),
        // Answers with the engine, and whether the content is that of the seed.
        ("link-get", [name, key, offset, size, seed]) => get(all, name, key, [offset, size, seed]),
        ("link-serve", [name, ms]) => serve(all, name, ms),
        ("link-exchange", [name, seed, peer_seed, count]) => exchange(all, name, seed, peer_seed, count),
        _ => return None,
    })
}

fn register(link: &Link, size: usize, access: RemoteAccess) -> Result<Registration<'static>, Failure> {
    // SAFETY: the memory is never freed, and is accessed only as volatile memory.
    Ok(unsafe { link.register(memory(size)?, access) }?)
}

/// Registers memory. Answers with its key in hexadecimal digits.
fn expose(all: &mut Links, name: &str, size: &str, access: &str) -> Answer {
    let access = match access {
        "get" => RemoteAccess::Get,
        "put" => RemoteAccess::Put,
        _ => RemoteAccess::GetPut,
    };
    let range = register(all.link(name)?, size.parse()?, access)?;
    let digits = range.key().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    all.ranges.push((name.to_owned(), range));
    Ok(digits)
}

fn key(digits: &str) -> Result<RemoteKey, Failure> {
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2).unwrap_or("x"), 16);
    let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect::<Result<_, _>>()?;
    Ok(RemoteKey::from_bytes(&bytes).map_err(Error::from)?)
}

fn put(all: &mut Links, name: &str, digits: &str, [offset, size, seed]: [&str; 3]) -> Answer {
    let bytes = content(size.parse()?, seed.parse()?);
    let engine = all.link(name)?.put(&key(digits)?, offset.parse::<usize>()?, &bytes)?;
    Ok(engine.to_string())
}

fn get(all: &mut Links, name: &str, digits: &str, [offset, size, seed]: [&str; 3]) -> Answer {
    let mut bytes = vec![0; size.parse()?];
    let engine = all.link(name)?.get(&key(digits)?, offset.parse::<usize>()?, &mut bytes)?;
    let same = if holds(&bytes, seed.parse()?) { "same" } else { "different" };
    Ok(format!("{engine} {same}"))
}

/// Serves the requests of the peer for the given time.
fn serve(all: &mut Links, name: &str, ms: &str) -> Answer {
    let end = Instant::now() + Duration::from_millis(ms.parse()?);
    let link = all.link(name)?;
    while Instant::now() < end {
        link.progress()?;
        std::thread::yield_now();
    }
    Ok(String::new())
}

/// Size of the memory that each side registers.
const WINDOW: usize = 200_000;

/// Registers memory, then puts lists of spans into the peer's memory and gets them back, while the
/// peer does the same.
fn exchange(all: &mut Links, name: &str, seed: &str, peer_seed: &str, count: &str) -> Answer {
    let (seed, peer_seed, count): (u64, u64, u64) = (seed.parse()?, peer_seed.parse()?, count.parse()?);
    let link = all.link(name)?;
    // All calls use the same memory, so that the process does not grow.
    static MEMORY: OnceLock<&'static Memory<'static>> = OnceLock::new();
    let window = *MEMORY.get_or_init(|| memory(WINDOW).unwrap());
    // SAFETY: the memory is never freed, and is accessed only as volatile memory.
    let mut range = unsafe { link.register(window, RemoteAccess::GetPut) }?;
    let mut bytes = [0; KEY_SIZE];
    link.exchange(seed, &range.key().to_bytes(), peer_seed, &mut bytes)?;
    let key = RemoteKey::from_bytes(&bytes).map_err(Error::from)?;
    let mut rng = Rng::new(seed);
    let mut used = [0; Engine::ALL.len()];
    for number in 0..count {
        let pieces = *rng.choose(&[1, 2, 17, 200]);
        let length = 1 + rng.below(WINDOW as u64 / pieces) as usize;
        let stride = (WINDOW / pieces as usize).max(length);
        let spans: Vec<Span> = (0..pieces as usize).map(|at| Span { offset: at * stride, length }).collect();
        let sent = content(length * spans.len(), seed + number);
        used[link.put(&key, &spans, Source::list(sent.chunks(3000)))? as usize] += 1;
        let mut received = vec![0; sent.len()];
        used[link.get(&key, &spans, &mut received)? as usize] += 1;
        if received != sent {
            return Err(Failure::new(
                "WrongContent",
                format!("transfer {number} of {pieces} pieces of {length}"),
            ));
        }
    }
    link.exchange(seed, &[1], peer_seed, &mut [0])?;
    range.end(link.timeout())?;
    let words: Vec<String> = Engine::ALL
        .into_iter()
        .filter(|engine| used[*engine as usize] > 0)
        .map(|engine| format!("{engine}={}", used[engine as usize]))
        .collect();
    Ok(words.join(" "))
}
