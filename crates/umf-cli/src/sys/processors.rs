//! Processors that threads run on.

use rustix::thread::CpuSet;

use super::Outcome;

/// Keeps the calling thread on the processor `number` of those that it may use, counted round; says how many there are.
pub(crate) fn stay_on(number: usize) -> Outcome<usize> {
    let usable = rustix::thread::sched_getaffinity(None)?;
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| usable.is_set(*processor)).collect();
    if let Some(processor) = processors.get(number % processors.len().max(1)) {
        let mut one = CpuSet::new();
        one.set(*processor);
        rustix::thread::sched_setaffinity(None, &one)?;
    }
    Ok(processors.len())
}
