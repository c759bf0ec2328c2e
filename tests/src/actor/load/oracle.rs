//! The oracle of the kill matrix: compares what umf reports for a handle with the recorded block.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use umf::ipc::Error;
use umf::{Access, Mapping};
use umf_tests::block_table::{BlockRecord, BlockState, BlockTable};

use crate::Failure;
use crate::memory::{holds, holds_or_released};

/// Limit for an open, whatever happens to the producer. The open's own timeout is 2 s at most.
const OPEN_LIMIT: Duration = Duration::from_secs(6);

/// Limit until the test has recorded that a killed producer is dead.
const DEATH_RECORD_LIMIT: Duration = Duration::from_secs(6);

/// Describes the producer of a handle as `/proc` shows it: its state, its ledger and its socket.
fn describe_producer(record: &BlockRecord) -> String {
    let Ok(handle) = umf::Handle::from_bytes(&record.handle) else { return "no handle".to_owned() };
    let pid = handle.pid();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    let ledger = std::fs::read_link(format!("/proc/{pid}/fd/{}", handle.ledger_fd()));
    let socket = umf_tests::ProcessSnapshot::is_bound(&format!("umf-{}", handle.nonce()));
    format!(
        "process {pid} is in state {state:?}, its ledger's fd is {ledger:?}, its socket is bound: {socket}"
    )
}

fn violation(problem: &str, record: &BlockRecord, details: impl std::fmt::Display) -> Failure {
    Failure::new(
        "Violation",
        format!("{problem}: block {:#x} of incarnation {}: {details}", record.number, record.incarnation),
    )
}

/// Opens the handle of an entry and checks the result against the entry. Returns the mapping, or
/// `None` if an error was right.
///
/// # Errors
/// The violation, if the result was wrong.
pub(crate) fn open(
    table: &BlockTable,
    index: u64,
    access: Access,
) -> Result<Option<(BlockRecord, Mapping<'static>)>, Failure> {
    let entry = table.entry(index);
    let Some((record, before)) = entry.read() else { return Ok(None) };
    let access = if record.read_only { Access::ReadOnly } else { access };
    let begun = Instant::now();
    let opened = umf::importer()?.open_bytes(&record.handle, access);
    let took = begun.elapsed();
    if took > OPEN_LIMIT {
        return Err(violation("the open took too long", &record, format!("{took:?}, {opened:?}")));
    }
    match opened {
        Ok(mapping) => {
            if before == BlockState::Freed {
                return Err(violation("opened after it was freed", &record, format!("{mapping:?}")));
            }
            check_content(&record, &mapping, OpenedBy::ThisProcess)?;
            Ok(Some((record, mapping)))
        }
        Err(error @ Error::Stale { .. }) => {
            let after = entry.state(record.number);
            if after == BlockState::Live && !record.evictable {
                return Err(violation("a live block is stale", &record, error));
            }
            Ok(None)
        }
        // These errors are right if and only if the producer is dead.
        Err(
            error @ (Error::ProducerGone { .. }
            | Error::ProducerReplaced { .. }
            | Error::OtherObject { .. }
            | Error::NotPermitted { .. }),
        ) => {
            let evidence = describe_producer(&record);
            if table.is_dead(record.incarnation, DEATH_RECORD_LIMIT) {
                return Ok(None);
            }
            let evidence = format!("{evidence}; later {}", describe_producer(&record));
            Err(violation("its producer is alive", &record, format!("{error}: {evidence}")))
        }
        // A producer that is stopped or not scheduled does not answer in time.
        Err(Error::TimedOut { .. }) if took >= umf::importer()?.settings().open_timeout => Ok(None),
        Err(error) => Err(violation("unexpected error", &record, error)),
    }
}

/// Process that opened a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedBy {
    /// This process: its lease defers the free of the block.
    ThisProcess,
    /// The parent of this forked child. Leases do not pass to children.
    Parent,
}

/// Checks the content of a mapping.
///
/// A current block has its own content. So has a block that was freed while this process had it
/// open, as its memory may not be reused. If the pool releases pages, they may also read as zeros.
pub(crate) fn check_content(
    record: &BlockRecord,
    mapping: &Mapping<'_>,
    opened_by: OpenedBy,
) -> Result<(), Failure> {
    let size = usize::try_from(record.size)?;
    let mut bytes = vec![0; size];
    let read = mapping.len() >= size && mapping.read(0, &mut bytes).is_ok();
    // The check must come after the last load: the block may be freed during the read.
    fence(Ordering::SeqCst);
    let current = mapping.is_current();
    let is_right = match (current, opened_by) {
        (false, OpenedBy::Parent) => true,
        (false, OpenedBy::ThisProcess) if record.release => read && holds_or_released(&bytes, record.number),
        _ => read && holds(&bytes, record.number),
    };
    if is_right {
        return Ok(());
    }
    let problem = if current { "wrong content" } else { "memory reused while it is open" };
    let first = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
    Err(violation(problem, record, format!("{} bytes of {}, first {first}", size, mapping.len())))
}
