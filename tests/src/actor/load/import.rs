//! An importer of the kill matrix.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use umf::{Access, Mapping};
use umf_tests::Rng;
use umf_tests::block_table::{BlockRecord, BlockTable, ENTRIES_PER_PRODUCER, PRODUCERS};

use super::oracle::{self, OpenedBy};
use super::{Work, oracle::check_content};
use crate::{Answer, Failure};

/// Maximum number of open mappings of a thread.
const MAX_OPEN: usize = 8;

type Open = (BlockRecord, Mapping<'static>);

/// Checks a mapping and closes it.
fn close((record, mapping): Open) -> Result<(), Failure> {
    check_content(&record, &mapping, OpenedBy::ThisProcess)
}

/// Runs threads that open, check and close recorded blocks, pass mappings to each other, evict, and
/// fork.
pub(super) fn run(work: &Work<'_>) -> Answer {
    let killed = AtomicU64::new(0);
    let opened = AtomicU64::new(0);
    // Mappings that a thread passes on. Another thread closes them.
    let passed_on: Mutex<Vec<Open>> = Mutex::default();
    let passed_on = || passed_on.lock().unwrap_or_else(PoisonError::into_inner);
    work.in_threads(|thread| {
        let mut rng = Rng::new(work.seed ^ thread << 48);
        let mut open: Vec<Open> = Vec::new();
        while !work.has_ended() {
            if let Some(new) = open_one(work.table, &mut rng)? {
                opened.fetch_add(1, Ordering::Relaxed);
                if open.len() < MAX_OPEN {
                    open.push(new);
                } else {
                    close(std::mem::replace(rng.choose_mut(&mut open), new))?;
                }
            }
            if !open.is_empty() {
                let (record, mapping) = rng.choose(&open);
                check_content(record, mapping, OpenedBy::ThisProcess)?;
                let index = usize::try_from(rng.below(open.len() as u64))?;
                match rng.below(12) {
                    0..3 => close(open.swap_remove(index))?,
                    3 => passed_on().push(open.swap_remove(index)),
                    4 => {
                        let found = passed_on().pop();
                        found.map_or(Ok(()), close)?;
                    }
                    _ => {}
                }
            }
            if rng.one_in(40) {
                umf::importer()?.evict_idle();
            }
            if thread == 0 && rng.one_in(150) && work.in_child(|| in_child(work, &open, rng.clone()))? {
                killed.fetch_add(1, Ordering::Relaxed);
            }
        }
        for open in open {
            if rng.one_in(2) { close(open)? } else { passed_on().push(open) }
        }
        late::open(work.table, rng)
    })?;
    let left = std::mem::take(&mut *passed_on());
    left.into_iter().try_for_each(close)?;
    umf::importer()?.evict_idle();
    Ok(format!("opened={} children_killed={}", opened.into_inner(), killed.into_inner()))
}

fn open_one(table: &BlockTable, rng: &mut Rng) -> Result<Option<Open>, Failure> {
    let access = if rng.one_in(4) { Access::ReadOnly } else { Access::ReadWrite };
    oracle::open(table, rng.below(PRODUCERS * ENTRIES_PER_PRODUCER), access)
}

/// Checks the inherited mappings in a forked child, and opens more blocks.
fn in_child(work: &Work<'_>, open: &[Open], mut rng: Rng) -> Result<(), Failure> {
    for (record, mapping) in open {
        // A child can read the ledgers of producers, and so knows whether a mapping is current.
        check_content(record, mapping, OpenedBy::Parent)?;
    }
    let mut opened = Vec::new();
    for _ in 0..8 {
        opened.extend(open_one(work.table, &mut rng)?);
    }
    if rng.one_in(2) {
        // The child exits without closing them.
        std::mem::forget(opened);
        return Ok(());
    }
    opened.into_iter().try_for_each(close)?;
    umf::importer()?.evict_idle();
    Ok(())
}

/// Opens in a thread whose thread-local destructor of umf has run already.
mod late {
    use super::{BlockTable, Failure, OnceLock, Rng, open_one};

    struct Late {
        table: *const BlockTable,
        rng: Rng,
    }

    /// Makes the calling thread open blocks when it ends. The caller must keep `table` until then.
    pub(super) fn open(table: &BlockTable, rng: Rng) -> Result<(), Failure> {
        static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
        // Destructors run in the order of the keys. This creates the key of umf first.
        umf_sync::thread::current();
        let key = *KEY.get_or_init(|| {
            let mut key = 0;
            // SAFETY: `key` is valid for the write; the destructor stays loaded.
            (unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) } == 0).then_some(key)
        });
        let key = key.ok_or_else(|| Failure::new("Key", "the process has no free thread-local key"))?;
        let late = Box::into_raw(Box::new(Late { table, rng }));
        // SAFETY: the key exists; the destructor takes the box back.
        unsafe { libc::pthread_setspecific(key, late.cast()) };
        Ok(())
    }

    extern "C" fn at_end(value: *mut libc::c_void) {
        // SAFETY: `open` stored the value, and this thread takes it back once.
        let mut late = unsafe { Box::from_raw(value.cast::<Late>()) };
        // SAFETY: the caller of `open` keeps the table until this thread has ended.
        let table = unsafe { &*late.table };
        for _ in 0..4 {
            if let Err(failure) = open_one(table, &mut late.rng) {
                table.report(&format!("at the end of a thread: {failure}"));
            }
        }
    }
}
