//! `umf bench capi`: the C interface of this project's `libumf.so.1`, beside the original's in the same process.

mod allocation;
mod handles;
mod libraries;

use super::Bench;
use super::c_umf::{self, Settings};
use super::measure::{Measured, told};
use super::turns::in_turns;
use crate::failure::Failure;
use crate::output;
use libraries::{Libraries, Side};

/// Adds the rows `capi.*`.
pub(super) fn measure(bench: &mut Bench) -> Result<(), Failure> {
    let libraries = Libraries::find(bench.ours_path.as_deref(), bench.peer_path.as_deref())?;
    allocation::measure(bench, &libraries)?;
    handles::measure(bench, &libraries)
}

/// Adds a row in nanoseconds: what `values` says of a new pool of each library, taken in turns.
fn row(
    bench: &mut Bench,
    libraries: &Libraries,
    name: &str,
    settings: Settings,
    values: impl Fn(&Side) -> Result<Vec<f64>, Failure>,
) -> Result<(), Failure> {
    if !bench.rows.are_wanted(name) {
        return Ok(());
    }
    bench.rows.begin(name);
    let sides = libraries.pools(settings)?;
    if sides.first().is_none_or(|side| side.number != 0) {
        output::tell(&format!("no row {name}: --ours was built without jemalloc"));
        return Ok(());
    }
    let subjects: Vec<&Side> = sides.iter().collect();
    let values = in_turns(bench.quick, &subjects, values)?;
    let mut measured = values.into_iter().map(Measured::of);
    let ours = measured.next().ok_or_else(|| told("nothing was measured"))??;
    let peer = measured.next().transpose()?.map(|peer| (c_umf::NAME, peer));
    bench.rows.add(name, ours, peer)
}
