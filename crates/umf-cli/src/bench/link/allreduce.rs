//! Two ranks sum what both have just written.

use std::time::Instant;

use umf::Pool;
use umf::link::{Destination, Operation, Reduction};

use super::super::Bench;
use super::super::measure::told;
use super::peer::{Buffer, Order, PATIENCE, with_buffers};
use super::rows::{Pair, SIZES, answer, push, rounds, say};
use crate::failure::Failure;

/// The rows: memory of a pool, and the process's own.
const KINDS: [(&str, bool); 2] = [("2r", true), ("2r.private", false)];

/// Adds the rows `link.allreduce.*`.
pub(super) fn measure(bench: &mut Bench, pair: &mut Pair) -> Result<(), Failure> {
    let mut number = 0;
    for (name, size) in [("8b", 8), SIZES[1], SIZES[2]] {
        for (kind, is_pool) in KINDS {
            let row = format!("link.allreduce.{name}.{kind}");
            let value = rounds(bench, pair, &row, |pair, count| {
                number += 1;
                let job = format!("bench-{}-{number}", std::process::id());
                let order = Order::AllReduce { job: job.clone(), size, count, pool: is_pool };
                say(&mut pair.worker, &order)?;
                let time = reduce(&pair.pool, &job, 0, (size, count, is_pool))?;
                answer(&mut pair.worker)?;
                Ok(time)
            })?;
            push(bench, &row, value)?;
        }
    }
    Ok(())
}

/// One rank's part; nanoseconds of one, without the writing and the waiting for each other before.
pub(super) fn reduce(
    pool: &Pool,
    job: &str,
    rank: usize,
    (size, count, is_pool): (usize, u64, bool),
) -> Result<f64, Failure> {
    let mut fabric = umf::link::join(job, rank, 2).map_err(told)?;
    fabric.set_timeout(Some(PATIENCE));
    let sum = Reduction::of::<f32>(Operation::Sum).map_err(told)?;
    with_buffers(pool, is_pool, size, |[mut own, _]| {
        let mut all = 0.0;
        for number in 0..count + 1 {
            // Of bits that are small numbers.
            own.write(0x3c);
            fabric.barrier().map_err(told)?;
            let start = Instant::now();
            let memory: Destination<'_> = match &mut own {
                Buffer::Pool(memory) => (*memory).into(),
                Buffer::Plain(bytes) => bytes.into(),
            };
            fabric.allreduce(memory, sum).map_err(told)?;
            // The first one meets the other side.
            if number > 0 {
                all += start.elapsed().as_nanos() as f64;
            }
        }
        // Nobody leaves before everybody has what it needs.
        fabric.barrier().map_err(told)?;
        Ok(all / count as f64)
    })
}
