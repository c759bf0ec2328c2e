//! Ranks of a job.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use umf::link::{Communicator, Error, Operation, Reduction, TagMatch};
use umf_tests::Sequence;

use super::{Memory, memory, milliseconds};
use crate::{Answer, Failure};

/// Numbers that are summed, in memory of a pool: the same each time, so that nothing grows.
const COUNT: usize = 1 << 17;
static OWN: OnceLock<&'static Memory<'static>> = OnceLock::new();

/// By the names that commands give.
pub(super) type Communicators = HashMap<String, Communicator>;

pub(super) fn obey(all: &mut Communicators, command: &str, words: &[&str]) -> Option<Answer> {
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
        // Answers with the rank and what it sent.
        ("comm-recv-any", [name]) => with(name, &mut |comm| {
            let mut value = [0; 8];
            let received = comm.recv_any(TagMatch::ANY, &mut value)?;
            Ok(format!("{} {}", received.from, u64::from_le_bytes(value)))
        }),
        ("comm-forget", [name, rank]) => with(name, &mut |comm| {
            comm.forget(rank.parse()?)?;
            Ok(String::new())
        }),
        // Links all ranks.
        ("comm-meet", [name]) => with(name, &mut |comm| {
            for rank in (0..comm.size()).filter(|rank| *rank != comm.rank()).collect::<Vec<_>>() {
                comm.link(rank)?;
            }
            Ok(String::new())
        }),
        ("comm-chatter", [name, ms, seed]) => {
            with(name, &mut |comm| chatter(comm, Duration::from_millis(ms.parse()?), seed.parse()?))
        }
        // Whether calls of a child are errors that end no process.
        ("comm-child-calls", [name]) => with(name, &mut |comm| {
            let (other, mut byte, bytes) = (1 - comm.rank(), [0], vec![0; 100_000]);
            let mut receive = comm.start_recv(Some(other), 1 << 40, &mut byte)?;
            let mut send = comm.start_send(other, 1 << 40, &bytes)?;
            // SAFETY: the child makes calls and ends.
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
                let is_refused = refused.into_iter().all(|refused| matches!(refused, Err(Error::Forked)));
                // SAFETY: ends the child without running what belongs to the parent.
                unsafe { libc::_exit(i32::from(!is_refused)) };
            }
            crate::process::wait_for(pid)
        }),
        // So many rounds of collectives, all of which are checked.
        ("comm-rounds", [name, count]) => with(name, &mut |comm| rounds(comm, count.parse()?)),
        _ => return None,
    })
}

fn join(job: &str, rank: &str, size: &str) -> Result<Communicator, Failure> {
    let mut comm = umf::link::join(job, rank.parse()?, size.parse()?)?;
    comm.set_timeout(Some(Duration::from_secs(60)));
    Ok(comm)
}

/// Sends messages of two lengths to any ranks and receives what comes from any, until the end of a rank is
/// reported or the time is over. Answers with the numbers of messages that were sent and received.
fn chatter(comm: &mut Communicator, time: Duration, seed: u64) -> Answer {
    const LENGTHS: [usize; 2] = [8, 6000];
    const MOST: usize = 48;
    // A number that ascends for all processes.
    let number = || {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: one valid structure.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        (now.tv_sec * 1_000_000_000 + now.tv_nsec).cast_unsigned()
    };
    let wrong = |what: &str| Err(Failure::new("WrongContent", what));
    let mut sequence = Sequence::new(seed);
    let (me, size, end) = (comm.rank(), comm.size(), Instant::now() + time);
    let (mut latest, mut counts, mut into) = (vec![0; size], [0_u64; 2], vec![0; LENGTHS[1]]);
    // Each message stays until it was sent.
    let mut sends: Vec<(Box<[u8]>, _)> = Vec::new();
    comm.set_timeout(Some(Duration::from_millis(1)));
    let talked = loop {
        // However slow the machine is, some are sent.
        if Instant::now() > end && counts[0] >= 8 {
            break Ok(());
        }
        let to = (me + 1 + sequence.below(size as u64 - 1) as usize) % size;
        if sends.len() < MOST {
            let bytes = number().to_le_bytes().repeat(sequence.of(&LENGTHS) / 8).into_boxed_slice();
            // SAFETY: the bytes are dropped after the request, and are not moved.
            let source: &'static [u8] = unsafe { core::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
            match comm.start_send(to, 1, source) {
                Ok(request) => {
                    sends.push((bytes, request));
                    counts[0] += 1;
                }
                // A receive reports it.
                Err(Error::PeerGone { .. } | Error::RankAbsent { .. }) => {}
                Err(error) => break Err(error),
            }
        }
        // The message to a rank that is gone is dropped.
        sends.retain_mut(|(_, request)| matches!(comm.test_send(request), Ok(false)));
        match comm.recv_any(1, &mut into) {
            Ok(received) => {
                let numbers = into[..received.length].chunks_exact(8);
                let mut numbers = numbers.map(|number| u64::from_le_bytes(number.try_into().unwrap()));
                let first = numbers.next().unwrap_or(0);
                if !LENGTHS.contains(&received.length) || !numbers.all(|number| number == first) {
                    return wrong("of a message");
                }
                if core::mem::replace(&mut latest[received.from], first) >= first {
                    return wrong("in another order than it was sent");
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
    talked?;
    Ok(format!("{} {}", counts[0], counts[1]))
}

fn own() -> Result<&'static Memory<'static>, Failure> {
    match OWN.get() {
        Some(own) => Ok(own),
        None => {
            let own = memory(COUNT * 8)?;
            Ok(*OWN.get_or_init(|| own))
        }
    }
}

fn rounds(comm: &mut Communicator, count: u64) -> Answer {
    let (me, size) = (comm.rank() as u64, comm.size() as u64);
    let sum = Reduction::of::<u64>(Operation::Sum)?;
    let shared = own()?;
    let mut bytes = vec![0; COUNT * 8];
    let wrong = |what: &str| Err(Failure::new("WrongContent", what));
    for round in 0..count {
        let ranks = size * (size - 1) / 2;
        // In memory of a pool, in private memory, and a short one.
        let numbers: Vec<u64> = (0..COUNT as u64).map(|place| place * 3 + me + round).collect();
        let expected = |place: u64| (place * 3 + round) * size + ranks;
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(&numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        shared.slice().copy_from(&bytes);
        comm.allreduce(shared, sum)?;
        shared.slice().copy_to(&mut bytes);
        let mut summed = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
        if !(0..COUNT as u64).all(|place| summed.next() == Some(expected(place))) {
            return wrong("of memory of a pool");
        }
        for length in [3, 5000] {
            let mut private = numbers[..length].to_vec();
            comm.allreduce(&mut private[..], sum)?;
            if !private.iter().zip(0..).all(|(number, place)| *number == expected(place)) {
                return wrong("of private memory");
            }
        }
        let mut given = [me + round; 40];
        comm.bcast((round % size) as usize, &mut given[..])?;
        if given != [round % size + round; 40] {
            return wrong("of what one gave");
        }
        comm.barrier()?;
    }
    Ok(count.to_string())
}
