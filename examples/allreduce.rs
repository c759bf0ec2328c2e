//! Ranks of a job sum a vector of numbers. `allreduce [RANKS]` starts that many processes of
//! itself; the default is 4.
//!
//! In a real job, a launcher starts the processes and passes each its rank.

use std::process::{Child, Command, ExitCode};
use std::time::Instant;

use umf::link::{Operation, Reduction};

/// The length of the vector.
const LENGTH: usize = 1 << 20;
/// The number of measured calls.
const CALLS: u32 = 10;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [] => launch(4),
        [ranks] => ranks.parse().map_err(Into::into).and_then(launch),
        [job, rank, size] => rank
            .parse()
            .and_then(|rank| Ok((rank, size.parse()?)))
            .map_err(Into::into)
            .and_then(|(rank, size)| run_rank(job, rank, size)),
        _ => Err("allreduce [RANKS]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The text of an error of umf contains the remedy.
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the ranks and waits for them.
fn launch(size: usize) -> Result<()> {
    // All ranks pass the same job name. It is no file name.
    let job = format!("allreduce-{}", std::process::id());
    let program = std::env::current_exe()?;
    let rank =
        |rank: usize| Command::new(&program).args([&job, &rank.to_string(), &size.to_string()]).spawn();
    let mut ranks = (0..size).map(rank).collect::<std::io::Result<Vec<Child>>>()?;
    let mut have_succeeded = true;
    for rank in &mut ranks {
        have_succeeded &= rank.wait()?.success();
    }
    if have_succeeded { Ok(()) } else { Err("a rank failed".into()) }
}

/// Runs one rank.
fn run_rank(job: &str, rank: usize, size: usize) -> Result<()> {
    let mut comm = umf::link::join(job, rank, size)?;
    // The other ranks map memory of a shared pool, and combine it in place, without a copy.
    let pool = umf::Pool::shared()?;
    let block = pool.allocate(LENGTH * size_of::<f32>())?;
    let numbers = block.view::<f32>()?;
    let memory = block.link_memory()?;
    let sum = Reduction::of::<f32>(Operation::Sum)?;

    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..CALLS {
        numbers.fill(rank as f32);
        comm.allreduce(&memory, sum)?;
    }
    let time = start.elapsed() / CALLS;

    // 0 + 1 + 2 + ...
    let expected = (0..size).map(|rank| rank as f32).sum::<f32>();
    if let Some(wrong) = numbers.iter().find(|number| *number != expected) {
        return Err(format!("rank {rank} has the sum {wrong} instead of {expected}").into());
    }
    if rank == 0 {
        println!("{size} ranks summed {LENGTH} numbers each, in {time:.1?}");
    }
    Ok(())
}
