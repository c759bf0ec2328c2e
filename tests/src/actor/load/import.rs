//! An importer under load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use umf::{Access, Mapping};
use umf_tests::Sequence;
use umf_tests::board::{Board, ENTRIES, Note, PLACES};

use super::judge::{self, Whose};
use super::{Work, judge::content};
use crate::{Answer, Failure};

/// Mappings that a thread holds at one time.
const HELD: usize = 8;

type Open = (Note, Mapping<'static>);

/// Looks at a mapping for the last time, and closes it.
fn close((note, mapping): Open) -> Result<(), Failure> {
    content(&note, &mapping, Whose::Own)
}

/// Threads open, look at, hold and close what is on the board, close what others opened, evict, and fork.
pub(super) fn run(work: &Work<'_>) -> Answer {
    let killed = AtomicU64::new(0);
    let opened = AtomicU64::new(0);
    // Closed by whoever finds it.
    let handed: Mutex<Vec<Open>> = Mutex::default();
    let handed = || handed.lock().unwrap_or_else(PoisonError::into_inner);
    work.in_threads(|thread| {
        let mut sequence = Sequence::new(work.seed ^ thread << 48);
        let mut held: Vec<Open> = Vec::new();
        while !work.has_ended() {
            if let Some(new) = open_one(work.board, &mut sequence)? {
                opened.fetch_add(1, Ordering::Relaxed);
                if held.len() < HELD {
                    held.push(new);
                } else {
                    close(std::mem::replace(sequence.of_mut(&mut held), new))?;
                }
            }
            if !held.is_empty() {
                let (note, mapping) = sequence.of(&held);
                content(note, mapping, Whose::Own)?;
                let place = usize::try_from(sequence.below(held.len() as u64))?;
                match sequence.below(12) {
                    0..3 => close(held.swap_remove(place))?,
                    3 => handed().push(held.swap_remove(place)),
                    4 => {
                        let found = handed().pop();
                        found.map_or(Ok(()), close)?;
                    }
                    _ => {}
                }
            }
            if sequence.one_in(40) {
                umf::importer()?.evict_idle();
            }
            if thread == 0
                && sequence.one_in(150)
                && work.in_child(|| in_child(work, &held, sequence.clone()))?
            {
                killed.fetch_add(1, Ordering::Relaxed);
            }
        }
        for open in held {
            if sequence.one_in(2) { close(open)? } else { handed().push(open) }
        }
        late::open(work.board, sequence)
    })?;
    let left = std::mem::take(&mut *handed());
    left.into_iter().try_for_each(close)?;
    umf::importer()?.evict_idle();
    Ok(format!("opened={} children_killed={}", opened.into_inner(), killed.into_inner()))
}

fn open_one(board: &Board, sequence: &mut Sequence) -> Result<Option<Open>, Failure> {
    let access = if sequence.one_in(4) { Access::ReadOnly } else { Access::ReadWrite };
    judge::open(board, sequence.below(PLACES * ENTRIES), access)
}

/// A child has its parent's mappings, and opens more.
fn in_child(work: &Work<'_>, held: &[Open], mut sequence: Sequence) -> Result<(), Failure> {
    for (note, mapping) in held {
        // The parent's ledgers may be read here, too: what is current has its content.
        content(note, mapping, Whose::Parents)?;
    }
    let mut opened = Vec::new();
    for _ in 0..8 {
        opened.extend(open_one(work.board, &mut sequence)?);
    }
    if sequence.one_in(2) {
        // It ends with that, and says nothing.
        std::mem::forget(opened);
        return Ok(());
    }
    opened.into_iter().try_for_each(close)?;
    umf::importer()?.evict_idle();
    Ok(())
}

/// Opens in a thread that has ended for umf already, and has no number there any more.
mod late {
    use super::{Board, Failure, OnceLock, Sequence, open_one};

    struct Late {
        board: *const Board,
        sequence: Sequence,
    }

    /// Has the calling thread open something when it ends. Whoever waits for its end keeps the board until then.
    pub(super) fn open(board: &Board, sequence: Sequence) -> Result<(), Failure> {
        static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
        // Keys are cleaned up in order: that of umf was made before this one.
        umf_sync::thread::current();
        let key = *KEY.get_or_init(|| {
            let mut key = 0;
            // SAFETY: `key` is valid for the write; the destructor stays loaded.
            (unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) } == 0).then_some(key)
        });
        let key = key.ok_or_else(|| Failure::new("Key", "none is left"))?;
        let late = Box::into_raw(Box::new(Late { board, sequence }));
        // SAFETY: the key exists; the destructor takes the box back.
        unsafe { libc::pthread_setspecific(key, late.cast()) };
        Ok(())
    }

    extern "C" fn at_end(value: *mut libc::c_void) {
        // SAFETY: the value of this thread, which `open` stored and which is taken back once.
        let mut late = unsafe { Box::from_raw(value.cast::<Late>()) };
        // SAFETY: `open` says who keeps it.
        let board = unsafe { &*late.board };
        for _ in 0..4 {
            if let Err(failure) = open_one(board, &mut late.sequence) {
                board.complain(&format!("at the end of a thread: {failure}"));
            }
        }
    }
}
