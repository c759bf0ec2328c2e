//! Ranks of a job sum a vector of numbers. `allreduce [RANKS]` starts that many processes of
//! itself, or 4.
//!
//! In a real job a launcher or a shell starts the processes and gives each its number.

use std::process::{Child, Command, ExitCode};
use std::time::Instant;

use umf::link::{Operation, Reduction};

/// Numbers that each rank has.
const LENGTH: usize = 1 << 20;
const TIMES: u32 = 10;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [] => start(4),
        [ranks] => ranks.parse().map_err(Into::into).and_then(start),
        [job, rank, size] => rank
            .parse()
            .and_then(|rank| Ok((rank, size.parse()?)))
            .map_err(Into::into)
            .and_then(|(rank, size)| take_part(job, rank, size)),
        _ => Err("allreduce [RANKS]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The text of an error of umf has the remedy.
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the ranks and waits for them.
fn start(size: usize) -> Result<()> {
    // All ranks of a job use the same name. Nothing has that name in a file system.
    let job = format!("allreduce-{}", std::process::id());
    let this = std::env::current_exe()?;
    let rank = |rank: usize| Command::new(&this).args([&job, &rank.to_string(), &size.to_string()]).spawn();
    let mut ranks = (0..size).map(rank).collect::<std::io::Result<Vec<Child>>>()?;
    let mut all_well = true;
    for rank in &mut ranks {
        all_well &= rank.wait()?.success();
    }
    if all_well { Ok(()) } else { Err("a rank failed".into()) }
}

/// Runs one rank.
fn take_part(job: &str, rank: usize, size: usize) -> Result<()> {
    let mut comm = umf::link::join(job, rank, size)?;
    // The other ranks map memory of a shared pool: it is combined in place, without a copy.
    let pool = umf::Pool::shared()?;
    let block = pool.allocate(LENGTH * size_of::<f32>())?;
    let numbers = block.view::<f32>()?;
    let memory = block.link_memory()?;
    let sum = Reduction::of::<f32>(Operation::Sum)?;

    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..TIMES {
        numbers.fill(rank as f32);
        comm.allreduce(&memory, sum)?;
    }
    let time = start.elapsed() / TIMES;

    // 0 + 1 + 2 + ..
    let expected = (0..size).map(|rank| rank as f32).sum::<f32>();
    if let Some(wrong) = numbers.iter().find(|number| *number != expected) {
        return Err(format!("rank {rank} has {wrong} in place of {expected}").into());
    }
    if rank == 0 {
        println!("{size} ranks have the sum of {LENGTH} numbers of each, in {time:.1?}");
    }
    Ok(())
}
