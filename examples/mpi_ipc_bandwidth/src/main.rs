//! MPI ranks send handles by value, and measure the bandwidth of reads through them.
//!
//! Each rank sends the handle of one of its blocks to the next rank with `MPI_Send`: 256 plain
//! bytes, no socket, no fd. The next rank opens the handle, reads the block and checks the
//! contents. Then the ranks measure messages of the same size by `MPI_Send` and `MPI_Recv`.
//!
//! ```text
//! apt-get install openmpi-bin libopenmpi-dev libclang-dev
//! cargo build --release && mpirun -n 2 target/release/mpi_ipc_bandwidth [largest size in MiB]
//! ```

use std::time::Instant;

use mpi::traits::*;
use umf::{Handle, Pool};

type Error = Box<dyn std::error::Error>;

/// The number of measured reads.
const READS: usize = 20;

/// Returns the byte with which a rank fills its block.
fn content(of: i32) -> u8 {
    b'A' + (of % 26) as u8
}

fn main() -> Result<(), Error> {
    let max_mib: usize = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let universe = mpi::initialize().ok_or("MPI cannot be initialised")?;
    let world = universe.world();
    let (rank, size) = (world.rank(), world.size());
    if size < 2 {
        return Err("the benchmark needs two ranks: mpirun -n 2".into());
    }
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let pool = Pool::shared()?;
    if rank == 0 {
        println!("{:>10} {:>12} {:>14} {:>14}", "bytes", "open (us)", "handle (GB/s)", "MPI (GB/s)");
    }
    let mut bytes = 64 << 10;
    while bytes <= max_mib << 20 {
        let block = pool.allocate(bytes)?;
        let mut into = vec![content(rank); bytes];
        block.write(0, &into)?;

        // By value: MPI sends plain bytes.
        let handle = block.handle()?.to_bytes();
        let mut received = handle;
        mpi::point_to_point::send_receive_into(
            &handle[..],
            &world.process_at_rank(next),
            &mut received[..],
            &world.process_at_rank(previous),
        );
        let handle = Handle::from_bytes(&received)?;
        let start = Instant::now();
        let mapping = umf::open(&handle)?;
        let open = start.elapsed();

        let mut best = f64::INFINITY;
        for _ in 0..READS {
            let start = Instant::now();
            mapping.read(0, &mut into)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        if into.iter().any(|byte| *byte != content(previous)) {
            return Err(format!("rank {rank} read other bytes than rank {previous} wrote").into());
        }
        // All ranks have read previous any rank frees.
        world.barrier();
        drop(mapping);

        // The same bytes through MPI: even ranks send first.
        let mut by_mpi = f64::INFINITY;
        let from = vec![content(rank); bytes];
        for _ in 0..READS {
            world.barrier();
            let start = Instant::now();
            mpi::point_to_point::send_receive_into(
                &from[..],
                &world.process_at_rank(next),
                &mut into[..],
                &world.process_at_rank(previous),
            );
            by_mpi = by_mpi.min(start.elapsed().as_secs_f64());
        }
        if rank == 0 {
            let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
            let open = open.as_secs_f64() * 1e6;
            println!("{bytes:>10} {open:>12.1} {:>14.2} {:>14.2}", rate(best), rate(by_mpi));
        }
        bytes *= 4;
    }
    // All ranks have freed their blocks before MPI is finalised.
    world.barrier();
    Ok(())
}
