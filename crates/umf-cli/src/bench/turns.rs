//! Several that are measured in turns, so that what the machine does meanwhile falls on all of them.

use crate::failure::Failure;

/// How often each has its turn in a row.
pub(super) const ROUNDS: usize = 5;

/// Each subject's values. The first one changes, so that nobody always comes after the same one.
pub(super) fn in_turns<S: ?Sized>(
    quick: bool,
    subjects: &[&S],
    measure: impl Fn(&S) -> Result<Vec<f64>, Failure>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let mut values = vec![Vec::new(); subjects.len()];
    for round in 0..if quick { 1 } else { ROUNDS } {
        for turn in 0..subjects.len() {
            let number = (round + turn) % subjects.len();
            values[number].extend(measure(subjects[number])?);
        }
    }
    Ok(values)
}
