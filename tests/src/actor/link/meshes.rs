//! Commands for meshes: messages with processes that are linked at the first one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use umf::link::{Destination, Error, Source, TagMatch};
use umf_link::mesh::{Completed, Label, Mesh, Process, Wanted};

use crate::memory::{content, holds};
use crate::{Answer, Failure};

/// Messages of these lengths are in the ring, offered, and long enough for both sides to copy.
const LENGTHS: [usize; 4] = [8, 200, 6000, 100_000];
/// The longest time without a completion.
const PATIENCE: Duration = Duration::from_secs(60);

/// Meshes, by the names that commands give.
pub(super) type Meshes = HashMap<String, Mesh>;

pub(super) fn execute(all: &mut Meshes, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        // Answers with the address.
        ("mesh-new", [name]) => umf::link::builder().map_err(Failure::from).and_then(|builder| {
            let mesh = Mesh::new(&builder)?;
            let address = mesh.address().to_string();
            all.insert((*name).to_owned(), mesh);
            Ok(address)
        }),
        ("mesh-drop", [name]) => Ok(all.remove(*name).is_some().to_string()),
        // Sends and receives `count` messages at the same time. A process that `answers` sends when
        // the first message has come. The mesh ends if that fails.
        ("mesh-exchange", [name, address, order, count, seed, peer_seed]) => {
            let Some(mut mesh) = all.remove(*name) else { return Some(Err(Failure::unknown(name))) };
            exchange(&mut mesh, address, *order == "answers", count, [seed, peer_seed]).map(|()| {
                all.insert((*name).to_owned(), mesh);
                String::new()
            })
        }
        _ => return None,
    })
}

fn exchange(
    mesh: &mut Mesh,
    address: &str,
    answers: bool,
    count: &str,
    [seed, peer_seed]: [&str; 2],
) -> Result<(), Failure> {
    let address = address.parse().map_err(|error| Failure::new("Address", error))?;
    let peer = mesh.insert(&address)?;
    let (count, seed, peer_seed): (usize, u64, u64) = (count.parse()?, seed.parse()?, peer_seed.parse()?);
    let length = |number: usize| LENGTHS[number % LENGTHS.len()];
    let sent: Vec<Vec<u8>> = (0..count).map(|number| content(length(number), seed + number as u64)).collect();
    let mut received: Vec<Vec<u8>> = (0..count).map(|number| vec![0; length(number)]).collect();
    let result = transfer(mesh, peer, answers, &sent, &mut received);
    if result.is_err() {
        // No operation that is left may use the memory.
        let builder = umf::link::builder()?;
        drop(core::mem::replace(mesh, Mesh::new(&builder)?));
    }
    result?;
    let is_wrong = |(number, bytes): (usize, &Vec<u8>)| !holds(bytes, peer_seed + number as u64);
    match received.iter().enumerate().position(is_wrong) {
        None => Ok(()),
        Some(number) => Err(Failure::new("WrongContent", format!("message {number}"))),
    }
}

fn transfer(
    mesh: &mut Mesh,
    peer: Process,
    answers: bool,
    sent: &[Vec<u8>],
    received: &mut [Vec<u8>],
) -> Result<(), Failure> {
    let count = sent.len();
    for (number, into) in received.iter_mut().enumerate() {
        let wanted = Wanted { from: Some(peer), tag: Some(TagMatch::tag(number as u64)) };
        // SAFETY: the caller keeps the memory until the completions, or until the mesh has ended.
        unsafe {
            let into = Destination::from_raw(&[(into.as_mut_ptr(), into.len())]);
            mesh.receive(wanted, into, None, number as u64)?;
        }
    }
    let (mut next, mut left) = (if answers { count } else { 0 }, 2 * count);
    let mut end = Instant::now() + PATIENCE;
    while left > 0 {
        if let Some(bytes) = sent.get(next) {
            let label = Label { tag: Some(next as u64), immediate: None };
            // SAFETY: as above.
            let sent = unsafe {
                let source = Source::from_raw(&[(bytes.as_ptr().cast_mut(), bytes.len())]);
                mesh.send(peer, label, source, false, (count + next) as u64)
            };
            if matches!(sent, Err(Error::NotAccepted { .. })) {
                mesh.progress();
                continue;
            }
            let is_sent = sent?;
            (next, left) = (next + 1, left - usize::from(is_sent));
            continue;
        }
        let Some(completion) = mesh.next_completion() else {
            if let Some(sleeper) = mesh.sleeper() {
                sleeper.sleep(Duration::from_millis(10));
                if Instant::now() > end {
                    return Err(Failure::new("Hang", format!("{left} of {} operations", 2 * count)));
                }
            }
            continue;
        };
        if let Completed::Received { .. } = completion.result? {
            // A process that answers begins now.
            next = if next == count && answers && left == 2 * count { 0 } else { next };
        }
        (left, end) = (left - 1, Instant::now() + PATIENCE);
    }
    Ok(())
}
