//! What umf says of a handle, held against what the board says of its block.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use umf::ipc::Error;
use umf::{Access, Mapping};
use umf_tests::board::{Board, Note, State};

use crate::Failure;
use crate::memory::{held_or_gone, holds};

/// How long an open may take, whatever happens to the producer: its own limit is 2 s at most.
const BOUND: Duration = Duration::from_secs(6);

/// How long it may take until the test has seen that somebody died.
const NEWS: Duration = Duration::from_secs(6);

/// What the kernel knows of the producer of a handle: its state, and where its ledger is.
fn as_the_kernel_has_it(note: &Note) -> String {
    let Ok(handle) = umf::Handle::from_bytes(&note.handle) else { return "no handle".to_owned() };
    let pid = handle.pid();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    let ledger = std::fs::read_link(format!("/proc/{pid}/fd/{}", handle.ledger_fd()));
    let socket = umf_tests::Census::is_bound(&format!("umf-{}", handle.nonce()));
    format!(
        "process {pid} is in state {state:?}, its ledger's fd is {ledger:?}, its socket is bound: {socket}"
    )
}

fn lie(what: &str, note: &Note, more: impl std::fmt::Display) -> Failure {
    Failure::new("Lie", format!("{what}: block {:#x} of incarnation {}: {more}", note.number, note.who))
}

/// Opens the handle of an entry of the board, and judges what comes of it. Yields what is open then.
pub(crate) fn open(
    board: &Board,
    index: u64,
    access: Access,
) -> Result<Option<(Note, Mapping<'static>)>, Failure> {
    let entry = board.entry(index);
    let Some((note, before)) = entry.read() else { return Ok(None) };
    let access = if note.read_only { Access::ReadOnly } else { access };
    let begun = Instant::now();
    let opened = umf::importer()?.open_bytes(&note.handle, access);
    let took = begun.elapsed();
    if took > BOUND {
        return Err(lie("slow", &note, format!("{took:?}, {opened:?}")));
    }
    match opened {
        Ok(mapping) => {
            if before == State::Freed {
                return Err(lie("freed before it was opened", &note, format!("{mapping:?}")));
            }
            content(&note, &mapping, Whose::Own)?;
            Ok(Some((note, mapping)))
        }
        Err(error @ Error::Stale { .. }) => {
            let after = entry.state(note.number);
            if after == State::Live && !note.evictable {
                return Err(lie("current, and said to be stale", &note, error));
            }
            Ok(None)
        }
        // Whoever is dead cannot be reached, in one way or the other; whoever lives can.
        Err(
            error @ (Error::ProducerGone { .. }
            | Error::ProducerReplaced { .. }
            | Error::OtherObject { .. }
            | Error::NotPermitted { .. }),
        ) => {
            let evidence = as_the_kernel_has_it(&note);
            if board.is_dead(note.who, NEWS) {
                return Ok(None);
            }
            let evidence = format!("{evidence}; later {}", as_the_kernel_has_it(&note));
            Err(lie("its producer lives", &note, format!("{error}: {evidence}")))
        }
        // Whether it was stopped or had no turn, it did not answer for that long.
        Err(Error::TimedOut { .. }) if took >= umf::importer()?.settings().open_timeout => Ok(None),
        Err(error) => Err(lie("no reason for that", &note, error)),
    }
}

/// Who has a mapping open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This process.
    Own,
    /// The process that this is a forked child of: nothing is held for the child.
    Parents,
}

/// What is current has its own content, and so has what was freed while this process had it open: nobody else has got its
/// memory. (Where pages are released, they may read as zeros.)
pub(crate) fn content(note: &Note, mapping: &Mapping<'_>, whose: Whose) -> Result<(), Failure> {
    let size = usize::try_from(note.size)?;
    let mut bytes = vec![0; size];
    let read = mapping.len() >= size && mapping.read(0, &mut bytes).is_ok();
    // It is current only if it was when the last byte was read.
    fence(Ordering::SeqCst);
    let current = mapping.is_current();
    let right = match (current, whose) {
        (false, Whose::Parents) => true,
        (false, Whose::Own) if note.release => read && held_or_gone(&bytes, note.number),
        _ => read && holds(&bytes, note.number),
    };
    if right {
        return Ok(());
    }
    let what = if current { "wrong content" } else { "its memory is another's while it is open" };
    let first = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
    Err(lie(what, note, format!("{} bytes of {}, first {first}", size, mapping.len())))
}
