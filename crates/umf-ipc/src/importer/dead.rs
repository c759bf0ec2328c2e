//! Memory of producers that have ended. [`ImporterInner::sweep`] closes idle mappings of it, and
//! releases what no importer has open.
//!
//! The pages of a producer's memory exist until the last importer unmaps them, and are charged to
//! the control group of the producer until then. An importer that keeps one small block open would
//! therefore keep all memory that the producer had. `docs/leases.md` ("Memory of dead producers")
//! has the protocol.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use umf_sync::{Lock, failpoint, fork};

use super::ImporterInner;
use super::producer::Producer;
use crate::handle::Handle;
use crate::lease::KeptRanges;
use crate::ledger::{SlotReader, Survivors};

/// The producers of an importer that have ended, and of which it has mappings.
#[derive(Debug, Default)]
pub(super) struct DeadProducers {
    list: Lock<Vec<Arc<Producer>>>,
    /// [`fork::generation`] of the process in which a thread sweeps, plus one; 0 if none does.
    sweeping: AtomicU32,
    /// Whether a sweep was requested while another thread swept.
    is_requested: AtomicBool,
    /// Tick of the coarse clock in which producers were checked last, in nanoseconds.
    checked: AtomicU64,
}

impl DeadProducers {
    pub(super) fn add(&self, producer: Arc<Producer>) {
        let mut list = self.list.lock();
        if !list.iter().any(|known| Arc::ptr_eq(known, &producer)) {
            list.push(producer);
        }
    }

    /// Returns the producer of a handle.
    pub(super) fn find(&self, handle: &Handle) -> Option<Arc<Producer>> {
        let list = self.list.lock();
        let is_of = |it: &&Arc<Producer>| (it.nonce(), it.pid()) == (handle.nonce(), handle.pid());
        list.iter().find(is_of).map(Arc::clone)
    }

    pub(super) fn fds(&self) -> u64 {
        self.list.lock().iter().map(|producer| producer.fds()).sum()
    }

    /// Disconnects from producers without a mapping.
    pub(super) fn prune(&self) {
        // Dropped without the lock: it disconnects.
        let idle: Vec<_> =
            self.list.lock().extract_if(.., |producer| Arc::strong_count(producer) == 1).collect();
        drop(idle);
    }
}

/// When a close of a dead producer's block collects its memory again. A collection reads the whole
/// lease table. If each close did, closing all blocks would take time in proportion to the square
/// of their number.
///
/// While at most [`FEW`] blocks are open, each close collects. Otherwise one does when half of the
/// blocks are closed that the last collection counted, or [`PAUSE`] times its length has passed.
#[derive(Debug, Default)]
pub(super) struct NextCollection {
    /// Closes before the one that collects.
    closes: AtomicU64,
    /// Time of the coarse clock from which on a close collects, in nanoseconds.
    time: AtomicU64,
}

/// Number of open blocks up to which each close collects.
const FEW: u64 = 64;
/// The length of the pause between two collections by closes, in lengths of a collection.
const PAUSE: u32 = 8;

impl NextCollection {
    /// Counts a close. Returns whether a collection is due.
    pub(super) fn is_due_after_close(&self) -> bool {
        let counted =
            self.closes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        counted.is_err() || coarse_time() >= self.time.load(Ordering::Relaxed)
    }

    /// Begins a collection. Closes request another one until it ends.
    fn begin(&self) -> std::time::Instant {
        self.closes.store(0, Ordering::SeqCst);
        std::time::Instant::now()
    }

    /// Ends a collection, after which `opens` are counted.
    fn end(&self, begun: std::time::Instant, opens: u64) {
        let pause = u64::try_from(begun.elapsed().saturating_mul(PAUSE).as_nanos()).unwrap_or(u64::MAX);
        self.time.store(coarse_time().saturating_add(pause), Ordering::Relaxed);
        self.closes.store(if opens <= FEW { 0 } else { opens / 2 }, Ordering::SeqCst);
    }
}

fn coarse_time() -> u64 {
    u64::try_from(umf_os::clock::coarse().as_nanos()).unwrap_or(u64::MAX)
}

/// All importers of this process, for [`sweep_all`].
static IMPORTERS: Lock<Vec<Weak<ImporterInner>>> = Lock::new(Vec::new());

/// Has `umf_runtime::deferred::poll` sweep an importer.
pub(super) fn register(importer: &Arc<ImporterInner>) {
    let dropped: Vec<_> = {
        let mut importers = IMPORTERS.lock();
        let dropped = importers.extract_if(.., |known| known.strong_count() == 0).collect();
        importers.push(Arc::downgrade(importer));
        dropped
    };
    drop(dropped);
    umf_runtime::deferred::after_poll(crate::after_poll);
}

/// Sweeps all importers of this process.
pub(crate) fn sweep_all() {
    let importers: Vec<_> = IMPORTERS.lock().iter().filter_map(Weak::upgrade).collect();
    for importer in importers {
        importer.sweep(true);
    }
}

impl ImporterInner {
    /// Sweeps, if that was not done in this tick of the clock.
    pub(super) fn sweep_if_due(&self) {
        let now = coarse_time();
        if self.dead.checked.load(Ordering::Relaxed) != now
            && self.dead.checked.swap(now, Ordering::Relaxed) != now
        {
            self.sweep(false);
        }
    }

    /// Finds producers that have ended. Releases what is not leased of their memory, closes idle
    /// mappings of it, and disconnects. `thorough`: also for producers that were found before. Does
    /// nothing while another thread sweeps, which then starts again.
    pub(super) fn sweep(&self, thorough: bool) {
        let mark = fork::generation().wrapping_add(1).max(1);
        self.dead.is_requested.fetch_or(thorough, Ordering::SeqCst);
        loop {
            let current = self.dead.sweeping.load(Ordering::SeqCst);
            // Any other value is that of a thread of the parent process.
            let is_free = current != mark
                && self
                    .dead
                    .sweeping
                    .compare_exchange(current, mark, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok();
            if !is_free {
                return;
            }
            let thorough = self.dead.is_requested.swap(false, Ordering::SeqCst);
            self.sweep_once(thorough);
            self.dead.sweeping.store(0, Ordering::SeqCst);
            if !self.dead.is_requested.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    fn sweep_once(&self, thorough: bool) {
        let mut ended = Vec::new();
        {
            let producers = self.producers.lock();
            // A later call sweeps if there is no memory now.
            if ended.try_reserve_exact(producers.len()).is_err() {
                return;
            }
            ended.extend(producers.iter().map(|(&id, producer)| (id, Arc::clone(producer))));
        }
        ended.retain(|(_, producer)| producer.has_ended());
        for (id, producer) in &ended {
            let mut producers = self.producers.lock();
            // Dropped without the lock.
            let removed = match producers.get(id) {
                Some(current) if Arc::ptr_eq(current, producer) => producers.remove(id),
                _ => None,
            };
            drop(producers);
            if removed.is_some() {
                self.dead.add(Arc::clone(producer));
            }
        }
        let dead: Vec<_> = if thorough {
            self.dead.list.lock().iter().map(Arc::clone).collect()
        } else {
            ended.into_iter().map(|(_, producer)| producer).collect()
        };
        if dead.is_empty() {
            return;
        }
        failpoint!("collect.found");
        for producer in &dead {
            let begun = producer.next_collection.begin();
            self.collect(producer);
            producer.next_collection.end(begun, producer.opens());
        }
        // After the collection, which needs the mappings.
        self.cache.evict_idle(|entry| dead.iter().any(|it| it.nonce() == entry.key().producer.nonce));
        failpoint!("collect.closed");
        drop(dead);
        self.dead.prune();
    }

    /// Releases the pages of a dead producer's memory that no importer has open, as far as this
    /// importer has them mapped writable.
    fn collect(&self, producer: &Arc<Producer>) {
        let entries = self
            .cache
            .entries(|entry| entry.key().producer.nonce == producer.nonce() && entry.value.file.is_some());
        if entries.is_empty() {
            return;
        }
        let pid = producer.pid();
        match producer.ledger().survivors() {
            Survivors::None => {}
            survivors => {
                tracing::debug!(pid, ?survivors, "memory of an ended producer is not released");
                return;
            }
        }
        let leased = match producer.leased_slots() {
            Ok(Some(leased)) => leased,
            Ok(None) => return,
            Err(errno) => {
                tracing::debug!(pid, %errno, "memory of an ended producer is not released: its leases cannot be read");
                return;
            }
        };
        failpoint!("collect.scanned");
        let slots = leased.iter().filter_map(|slot| producer.ledger().slot(slot));
        let kept = KeptRanges::of(slots.map(SlotReader::last_content));
        for entry in &entries {
            let Some(file) = entry.value.file else { continue };
            for range in kept.others(file.file, file.offset..file.offset + entry.value.imported.size as u64) {
                if let Err(errno) = entry.value.release_pages(&range) {
                    tracing::debug!(pid, %errno, ?range, "memory of an ended producer is not released");
                    break;
                }
                failpoint!("collect.punched");
            }
        }
    }
}
