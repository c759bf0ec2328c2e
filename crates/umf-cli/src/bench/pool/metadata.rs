//! What a pool needs for itself.

use super::allocator::Allocator;
use crate::bench::measure::told;
use crate::failure::Failure;
use crate::info::kernel_files;

/// Bytes of a block.
const SIZE: usize = 64;

/// Allocates `bytes` in blocks of 64 bytes that nobody touches. What the process then has in memory more than before is
/// the allocator's own; yields it in per cent of what the allocator has reserved, `None` if it does not say that.
///
/// The blocks stay: the process is about to end.
pub(super) fn run<A: Allocator>(allocator: &A, bytes: usize) -> Result<Option<f64>, Failure> {
    let before = resident()?;
    for _ in 0..bytes / SIZE {
        allocator.allocate(SIZE).map_err(told)?;
    }
    let own = resident()?.saturating_sub(before);
    Ok(allocator.reserved().map(|reserved| 100.0 * own as f64 / reserved as f64))
}

/// Bytes that the process has in memory.
fn resident() -> Result<u64, Failure> {
    const PATH: &str = "/proc/self/smaps_rollup";
    let text = kernel_files::text(PATH).map_err(Failure::Told)?;
    let found = kernel_files::field(&text, "Rss").and_then(kernel_files::kilobytes);
    found.ok_or_else(|| Failure::Told(format!("{PATH} does not say how much is in memory")))
}
