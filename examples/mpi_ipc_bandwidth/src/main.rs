//! Ranks of MPI pass handles by value, and measure what they read through them.
//!
//! Each rank sends the handle of a block of its own to the next one with `MPI_Send`: 256 plain
//! bytes, no socket, no fd. The next one opens it, reads all of it, and checks it. Then both
//! measure the same bytes by `MPI_Send` and `MPI_Recv`.
//!
//! ```text
//! apt-get install openmpi-bin libopenmpi-dev libclang-dev
//! cargo build --release && mpirun -n 2 target/release/mpi_ipc_bandwidth [largest size in MiB]
//! ```

use std::time::Instant;

use mpi::traits::*;
use umf::{Handle, Pool};

type Failure = Box<dyn std::error::Error>;

const TIMES: usize = 20;

/// What a rank has in its block.
fn content(rank: i32) -> u8 {
    b'A' + (rank % 26) as u8
}

fn main() -> Result<(), Failure> {
    let most: usize = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let universe = mpi::initialize().ok_or("MPI cannot be initialised")?;
    let world = universe.world();
    let (me, size) = (world.rank(), world.size());
    if size < 2 {
        return Err("the benchmark needs two ranks: mpirun -n 2".into());
    }
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let pool = Pool::shared()?;
    if me == 0 {
        println!("{:>10} {:>12} {:>14} {:>14}", "bytes", "open (us)", "handle (GB/s)", "MPI (GB/s)");
    }
    let mut bytes = 64 << 10;
    while bytes <= most << 20 {
        let block = pool.allocate(bytes)?;
        let mut into = vec![content(me); bytes];
        block.write(0, &into)?;

        // By value: all that MPI carries is bytes.
        let handle = block.handle()?.to_bytes();
        let mut theirs = handle;
        mpi::point_to_point::send_receive_into(
            &handle[..],
            &world.process_at_rank(next),
            &mut theirs[..],
            &world.process_at_rank(before),
        );
        let handle = Handle::from_bytes(&theirs)?;
        let start = Instant::now();
        let mapping = umf::open(&handle)?;
        let open = start.elapsed();

        let mut best = f64::INFINITY;
        for _ in 0..TIMES {
            let start = Instant::now();
            mapping.read(0, &mut into)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        if into.iter().any(|byte| *byte != content(before)) {
            return Err(format!("rank {me} read something else than rank {before} wrote").into());
        }
        // All ranks have read before any rank frees.
        world.barrier();
        drop(mapping);

        // The same bytes through MPI: even ranks send first.
        let mut by_mpi = f64::INFINITY;
        let from = vec![content(me); bytes];
        for _ in 0..TIMES {
            world.barrier();
            let start = Instant::now();
            mpi::point_to_point::send_receive_into(
                &from[..],
                &world.process_at_rank(next),
                &mut into[..],
                &world.process_at_rank(before),
            );
            by_mpi = by_mpi.min(start.elapsed().as_secs_f64());
        }
        if me == 0 {
            let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
            let open = open.as_secs_f64() * 1e6;
            println!("{bytes:>10} {open:>12.1} {:>14.2} {:>14.2}", rate(best), rate(by_mpi));
        }
        bytes *= 4;
    }
    // The registered end of MPI comes after the blocks are free.
    world.barrier();
    Ok(())
}
