//! The rows about handles of memory that is shared with other processes.

use std::time::Duration;

use super::allocation::{SET, over_blocks};
use super::libraries::{Libraries, Side};
use super::row;
use crate::bench::Bench;
use crate::bench::c_umf::{Memory, Refused, Settings};
use crate::bench::measure;
use crate::bench::producer::Producer;
use crate::failure::Failure;
use crate::timing;

/// Bytes of a block.
const SIZE: usize = 64 << 10;
/// How often the set is gone through in a batch.
const PASSES: usize = 64;

const SHARED: Settings = Settings::default_over(Memory::Shared);

/// Adds the rows.
pub(super) fn measure(bench: &mut Bench, libraries: &Libraries) -> Result<(), Failure> {
    let time = bench.turn();
    row(bench, libraries, "capi.get_put", SHARED, |side| {
        over_blocks(&side.library, SIZE, time, PASSES, |pointer| side.library.get_and_put(pointer))
    })?;

    // Of one process, and with two threads the same handles.
    let rows = [("capi.open_close.1t", 1), ("capi.open_close.2t", 2)];
    if !rows.iter().any(|(name, _)| bench.rows.are_wanted(name)) {
        return Ok(());
    }
    let mut producer = Producer::start()?;
    let handles: Result<Vec<_>, _> =
        libraries.paths().map(|path| producer.foreign(path.to_owned(), SHARED, SET, SIZE)).collect();
    let handles = handles?;
    for (name, threads) in rows {
        row(bench, libraries, name, SHARED, |side| {
            open_and_close(side, &handles[side.number], threads, time)
        })?;
    }
    Ok(())
}

/// Hits: what was opened before, and closed.
fn open_and_close(
    side: &Side,
    handles: &[Vec<u8>],
    threads: usize,
    time: Duration,
) -> Result<Vec<f64>, Failure> {
    let values = measure::gather(threads, |_| {
        timing::batches(time, || {
            for _ in 0..PASSES {
                handles.iter().try_for_each(|handle| side.library.open_and_close(handle))?;
            }
            Ok::<u64, Refused>((PASSES * handles.len()) as u64)
        })
    })?;
    Ok(values.concat())
}
