//! An importer under load.

use umf::{Access, Mapping};
use umf_tests::Sequence;
use umf_tests::board::{ENTRIES, Note, PLACES};

use super::{Work, judge};
use crate::{Answer, Failure};

/// Mappings that a thread holds at one time.
const HELD: usize = 4;

/// Threads open, look at, hold and close what is on the board, evict, and fork.
pub(super) fn run(work: &Work<'_>) -> Answer {
    let killed = std::sync::atomic::AtomicU64::new(0);
    let opened = std::sync::atomic::AtomicU64::new(0);
    let count = |counter: &std::sync::atomic::AtomicU64| {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    work.in_threads(|thread| {
        let mut sequence = Sequence::new(work.seed ^ thread << 48);
        let mut held: Vec<(Note, Mapping<'static>)> = Vec::new();
        while !work.has_ended() {
            if let Some(new) = open_one(work, &mut sequence)? {
                count(&opened);
                if held.len() < HELD {
                    held.push(new);
                } else {
                    *sequence.of_mut(&mut held) = new;
                }
            }
            if !held.is_empty() {
                let (note, mapping) = sequence.of(&held);
                judge::content(note, mapping)?;
                if sequence.one_in(3) {
                    held.swap_remove(usize::try_from(sequence.below(held.len() as u64))?);
                }
            }
            if sequence.one_in(40) {
                umf::importer()?.evict_idle();
            }
            if thread == 0
                && sequence.one_in(150)
                && work.in_child(|| in_child(work, &held, sequence.clone()))?
            {
                count(&killed);
            }
        }
        Ok(())
    })?;
    umf::importer()?.evict_idle();
    Ok(format!("opened={} children_killed={}", opened.into_inner(), killed.into_inner()))
}

fn open_one(work: &Work<'_>, sequence: &mut Sequence) -> Result<Option<(Note, Mapping<'static>)>, Failure> {
    let access = if sequence.one_in(4) { Access::ReadOnly } else { Access::ReadWrite };
    judge::open(work.board, sequence.below(PLACES * ENTRIES), access)
}

/// A child has its parent's mappings, and opens more.
fn in_child(
    work: &Work<'_>,
    held: &[(Note, Mapping<'static>)],
    mut sequence: Sequence,
) -> Result<(), Failure> {
    for (note, mapping) in held {
        // The parent's ledgers may be read here, too: what is current has its content.
        judge::content(note, mapping)?;
    }
    for _ in 0..8 {
        open_one(work, &mut sequence)?;
    }
    umf::importer()?.evict_idle();
    Ok(())
}
