//! Ranks of a job.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use umf::link::{Fabric, Operation, Reduction, TagMatch};

use super::{Memory, memory, milliseconds};
use crate::{Answer, Failure};

/// Numbers that are summed, in memory of a pool: the same each time, so that nothing grows.
const COUNT: usize = 1 << 17;
static OWN: OnceLock<&'static Memory<'static>> = OnceLock::new();

/// By the names that commands give.
pub(super) type Fabrics = HashMap<String, Fabric>;

pub(super) fn obey(all: &mut Fabrics, command: &str, words: &[&str]) -> Option<Answer> {
    let mut with = |name: &str, run: &mut dyn FnMut(&mut Fabric) -> Answer| {
        run(all.get_mut(name).ok_or_else(|| Failure::unknown(name))?)
    };
    Some(match (command, words) {
        ("fabric-join", [job, rank, size, "->", name]) => join(job, rank, size).map(|fabric| {
            all.insert((*name).to_owned(), fabric);
            String::new()
        }),
        ("fabric-drop", [name]) => Ok(all.remove(*name).is_some().to_string()),
        ("fabric-timeout", [name, ms]) => with(name, &mut |fabric| {
            fabric.set_timeout(milliseconds(ms)?);
            Ok(String::new())
        }),
        ("fabric-barrier", [name]) => with(name, &mut |fabric| {
            fabric.barrier()?;
            Ok(String::new())
        }),
        ("fabric-send", [name, to, tag, value]) => with(name, &mut |fabric| {
            let value: u64 = value.parse()?;
            fabric.send(to.parse()?, tag.parse()?, &value.to_le_bytes())?;
            Ok(String::new())
        }),
        // Answers with the rank and what it sent.
        ("fabric-recv-any", [name]) => with(name, &mut |fabric| {
            let mut value = [0; 8];
            let (from, _) = fabric.recv_any(TagMatch::ANY, &mut value)?;
            Ok(format!("{from} {}", u64::from_le_bytes(value)))
        }),
        ("fabric-forget", [name, rank]) => with(name, &mut |fabric| {
            fabric.forget(rank.parse()?)?;
            Ok(String::new())
        }),
        // So many rounds of collectives, all of which are checked.
        ("fabric-rounds", [name, count]) => with(name, &mut |fabric| rounds(fabric, count.parse()?)),
        _ => return None,
    })
}

fn join(job: &str, rank: &str, size: &str) -> Result<Fabric, Failure> {
    let mut fabric = umf::link::join(job, rank.parse()?, size.parse()?)?;
    fabric.set_timeout(Some(Duration::from_secs(60)));
    Ok(fabric)
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

fn rounds(fabric: &mut Fabric, count: u64) -> Answer {
    let (me, size) = (fabric.rank() as u64, fabric.size() as u64);
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
        fabric.allreduce(shared, sum)?;
        shared.slice().copy_to(&mut bytes);
        let mut summed = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
        if !(0..COUNT as u64).all(|place| summed.next() == Some(expected(place))) {
            return wrong("of memory of a pool");
        }
        for length in [3, 5000] {
            let mut private = numbers[..length].to_vec();
            fabric.allreduce(&mut private[..], sum)?;
            if !private.iter().zip(0..).all(|(number, place)| *number == expected(place)) {
                return wrong("of private memory");
            }
        }
        let mut given = [me + round; 40];
        fabric.bcast((round % size) as usize, &mut given[..])?;
        if given != [round % size + round; 40] {
            return wrong("of what one gave");
        }
        fabric.barrier()?;
    }
    Ok(count.to_string())
}
