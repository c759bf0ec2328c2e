//! Commands for communicators: this process as a rank of a job.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use umf::link::{Communicator, Error, Operation, Reduction, TagMatch};
use umf_tests::Rng;

use super::{Memory, memory, milliseconds};
use crate::{Answer, Failure};

/// Length of the vector that [`rounds`] reduces.
const COUNT: usize = 1 << 17;
/// Memory of that vector. All calls use the same memory, so that the process does not grow.
static VECTOR: OnceLock<&'static Memory<'static>> = OnceLock::new();

/// Communicators, by the names that commands give.
pub(super) type Communicators = HashMap<String, Communicator>;

pub(super) fn execute(all: &mut Communicators, command: &str, words: &[&str]) -> Option<Answer> {
    let mut with = |name: &str, run: &mut dyn FnMut(&mut Communicator) -> Answer| {
        run(all.get_mut(name).ok_or_else(|| Failure::unknown(name))?)
    };
    Some(match (command, words) {
        ("comm-join", [job, rank, size, "->", name]) => join(job, rank, size).map(|comm| {
            all.insert((*name).to_owned(), comm);
            String::new()
        }),
        ("comm-drop", [name]) => Ok(all.remove(*name).is_some().to_string()),
        ("comm-timeout", [name, ms]) => with(name, &mut |comm| {
            comm.set_timeout(milliseconds(ms)?);
            Ok(String::new())
        }),
        ("comm-barrier", [name]) => with(name, &mut |comm| {
            comm.barrier()?;
            Ok(String::new())
        }),
        ("comm-send", [name, to, tag, value]) => with(name, &mut |comm| {
            let value: u64 = value.parse()?;
            comm.send(to.parse()?, tag.parse()?, &value.to_le_bytes())?;
            Ok(String::new())
        }),
        // Answers with the sender and the value.
        ("comm-recv-any", [name]) => with(name, &mut |comm| {
            let mut value = [0; 8];
            let received = comm.recv_any(TagMatch::ANY, &mut value)?;
            Ok(format!("{} {}", received.from, u64::from_le_bytes(value)))
        }),
        ("comm-forget", [name, rank]) => with(name, &mut |comm| {
            comm.forget(rank.parse()?)?;
            Ok(String::new())
        }),
        // Connects to all ranks.
        ("comm-meet", [name]) => with(name, &mut |comm| {
            for rank in (0..comm.size()).filter(|rank| *rank != comm.rank()).collect::<Vec<_>>() {
                comm.link(rank)?;
            }
            Ok(String::new())
        }),
        ("comm-chatter", [name, ms, seed]) => {
            with(name, &mut |comm| chatter(comm, Duration::from_millis(ms.parse()?), seed.parse()?))
        }
        // Forks a child, in which each call must fail without ending a process.
        ("comm-child-calls", [name]) => with(name, &mut |comm| {
            let (other, mut byte, bytes) = (1 - comm.rank(), [0], vec![0; 100_000]);
            let mut receive = comm.start_recv(Some(other), 1 << 40, &mut byte)?;
            let mut send = comm.start_send(other, 1 << 40, &bytes)?;
            // SAFETY: umf and the allocator have fork handlers, so that the child can use both; it
            // then ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let refused = [
                    comm.test_recv(&mut receive).map(drop),
                    comm.test_send(&mut send).map(drop),
                    comm.link(other).map(drop),
                    comm.probe(None, TagMatch::ANY).map(drop),
                    comm.start_recv(None, TagMatch::ANY, &mut [0; 1]).map(drop),
                    comm.finish(&mut [send], &mut [receive]),
                    comm.forget(other),
                    comm.barrier(),
                ];
                let are_refused = refused.into_iter().all(|refused| matches!(refused, Err(Error::Forked)));
                // SAFETY: ends the child without running exit handlers of the parent.
                unsafe { libc::_exit(i32::from(!are_refused)) };
            }
            crate::process::wait_for(pid)
        }),
        // Runs rounds of collectives and checks the results.
        ("comm-rounds", [name, count]) => with(name, &mut |comm| rounds(comm, count.parse()?)),
        _ => return None,
    })
}

fn join(job: &str, rank: &str, size: &str) -> Result<Communicator, Failure> {
    let mut comm = umf::link::join(job, rank.parse()?, size.parse()?)?;
    comm.set_timeout(Some(Duration::from_secs(60)));
    Ok(comm)
}

/// Sends messages of two lengths to random ranks and receives from any rank. Ends when a receive
/// reports the end of a rank, or after the given time. Answers with the numbers of sent and
/// received messages.
fn chatter(comm: &mut Communicator, time: Duration, seed: u64) -> Answer {
    const LENGTHS: [usize; 2] = [8, 6000];
    const MAX_SENDS: usize = 48;
    // The monotonic clock: messages of one sender have ascending numbers.
    let number = || {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: one valid structure.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        (now.tv_sec * 1_000_000_000 + now.tv_nsec).cast_unsigned()
    };
    let wrong = |problem: &str| Err(Failure::new("WrongContent", problem));
    let mut rng = Rng::new(seed);
    let (rank, size, end) = (comm.rank(), comm.size(), Instant::now() + time);
    let (mut latest, mut counts, mut into) = (vec![0; size], [0_u64; 2], vec![0; LENGTHS[1]]);
    // Sends in progress, with the memory that each reads.
    let mut sends: Vec<(Box<[u8]>, _)> = Vec::new();
    comm.set_timeout(Some(Duration::from_millis(1)));
    let ended = loop {
        // Sends a minimum, however slow the machine is.
        if Instant::now() > end && counts[0] >= 8 {
            break Ok(());
        }
        let to = (rank + 1 + rng.below(size as u64 - 1) as usize) % size;
        if sends.len() < MAX_SENDS {
            let bytes = number().to_le_bytes().repeat(rng.choose(&LENGTHS) / 8).into_boxed_slice();
            // SAFETY: the boxed bytes do not move, and are dropped after the request.
            let source: &'static [u8] = unsafe { core::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
            match comm.start_send(to, 1, source) {
                Ok(request) => {
                    sends.push((bytes, request));
                    counts[0] += 1;
                }
                // A later receive reports the end of the rank.
                Err(Error::PeerGone { .. } | Error::RankAbsent { .. }) => {}
                Err(error) => break Err(error),
            }
        }
        // Drops messages to a rank that ended.
        sends.retain_mut(|(_, request)| matches!(comm.test_send(request), Ok(false)));
        match comm.recv_any(1, &mut into) {
            Ok(received) => {
                let numbers = into[..received.length].chunks_exact(8);
                let mut numbers = numbers.map(|number| u64::from_le_bytes(number.try_into().unwrap()));
                let first = numbers.next().unwrap_or(0);
                if !LENGTHS.contains(&received.length) || !numbers.all(|number| number == first) {
                    return wrong("a message");
                }
                if core::mem::replace(&mut latest[received.from], first) >= first {
                    return wrong("messages are out of order");
                }
                counts[1] += 1;
            }
            Err(Error::TimedOut { .. }) => {}
            Err(error) => break Err(error),
        }
    };
    for (bytes, request) in sends {
        drop(request);
        drop(bytes);
    }
    comm.set_timeout(Some(Duration::from_secs(60)));
    ended?;
    Ok(format!("{} {}", counts[0], counts[1]))
}

fn vector() -> Result<&'static Memory<'static>, Failure> {
    match VECTOR.get() {
        Some(vector) => Ok(vector),
        None => {
            let vector = memory(COUNT * 8)?;
            Ok(*VECTOR.get_or_init(|| vector))
        }
    }
}

/// Runs rounds of reductions, broadcasts and barriers, and checks the results.
fn rounds(comm: &mut Communicator, count: u64) -> Answer {
    let (rank, size) = (comm.rank() as u64, comm.size() as u64);
    let sum = Reduction::of::<u64>(Operation::Sum)?;
    let shared = vector()?;
    let mut bytes = vec![0; COUNT * 8];
    let wrong = |memory: &str| Err(Failure::new("WrongContent", memory));
    for round in 0..count {
        let ranks = size * (size - 1) / 2;
        // Reduces a vector in memory of a pool, then a short and a longer one in private memory.
        let numbers: Vec<u64> = (0..COUNT as u64).map(|index| index * 3 + rank + round).collect();
        let expected = |index: u64| (index * 3 + round) * size + ranks;
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(&numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        shared.slice().copy_from(&bytes);
        comm.allreduce(shared, sum)?;
        shared.slice().copy_to(&mut bytes);
        let mut summed = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
        if !(0..COUNT as u64).all(|index| summed.next() == Some(expected(index))) {
            return wrong("a reduction in memory of a pool");
        }
        for length in [3, 5000] {
            let mut private = numbers[..length].to_vec();
            comm.allreduce(&mut private[..], sum)?;
            if !private.iter().zip(0..).all(|(number, index)| *number == expected(index)) {
                return wrong("a reduction in private memory");
            }
        }
        let mut broadcast = [rank + round; 40];
        comm.bcast((round % size) as usize, &mut broadcast[..])?;
        if broadcast != [round % size + round; 40] {
            return wrong("a broadcast");
        }
        comm.barrier()?;
    }
    Ok(count.to_string())
}
