//! What a pool watches of itself, if it is set to: for finding mistakes in programs.
//!
//! Whoever is watched takes the slow path, always: one flag among those that it tests ([`crate::pool::WATCHED`]) leads here,
//! and who is not watched never comes. What is remembered lies in mappings of its own, as all metadata does.
//!
//! | module | idea |
//! |---|---|
//! | `history` | the last events of each thread |
//! | `sites` | where live blocks were allocated |
//! | `leaks`, `exit` | what is live at the end of the pool, or of the process |
//! | `poison` | what is freed is filled, and looked at again before it is used again |
//! | `quarantine` | what is freed waits for a while |
//! | `faults` | what was found, until it can be told |
//! | `settings` | all that can be set of this |

mod exit;
mod faults;
mod history;
mod leaks;
mod poison;
mod quarantine;
mod settings;
mod sites;

pub(crate) use settings::Watched;
pub use settings::{Leaks, Poison};

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use umf_core::history::{Event, EventKind, reason};
use umf_core::leaks::LeakTime;
use umf_core::{Address, Error, Layout, Result};

use crate::SlabPool;
use crate::pool::WATCHED;
use crate::span::Place;
use crate::state::{Entry, LIVE, POISONED, SITED};

use faults::Faults;
use history::History;
use quarantine::Quarantine;
use sites::Sites;

/// What one pool remembers.
pub(crate) struct Watch {
    began: Instant,
    history: History,
    sites: Sites,
    quarantine: Quarantine,
    faults: Faults,
    /// The process in which the pool was made, as [`umf_sync::fork::generation`] counts.
    process: u32,
    /// The pool may be the global allocator: nothing is allocated for telling something.
    pub(crate) is_global: bool,
}

impl Watch {
    pub(crate) fn new(watched: &Watched) -> Self {
        Self {
            began: Instant::now(),
            history: History::new(watched.history),
            sites: Sites::new(watched.leak_sample.max(1)),
            quarantine: Quarantine::new(watched.quarantine),
            faults: Faults::new(),
            process: umf_sync::fork::generation(),
            is_global: false,
        }
    }

    /// Bytes that wait in quarantine.
    pub(crate) fn quarantined(&self) -> u64 {
        self.quarantine.bytes()
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

impl SlabPool {
    pub(crate) fn is_watched(&self) -> bool {
        self.gates.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Remembers an event, if there is a history.
    pub(crate) fn remember(&self, kind: EventKind, address: Address, (size, block_size): (u64, u64)) {
        self.remember_refusal(kind, address, (size, block_size), "");
    }

    fn remember_refusal(
        &self,
        kind: EventKind,
        address: Address,
        (size, block_size): (u64, u64),
        reason: &'static str,
    ) {
        if self.watch.history.is_on() {
            let (at, thread) = (self.watch.now(), umf_os::process::thread_id());
            let event = Event { at, thread, kind, address, size, block_size, reason };
            self.watch.history.record(&self.arena, &event);
        }
    }

    /// Marks an entry as handed out, and yields its address. What is watched keeps the mark that it is poisoned.
    pub(crate) fn hand_out(&self, entry: Entry) -> Address {
        // SAFETY: the callers took the entry out of a cache or the shared store, so it is theirs alone, and names our metadata.
        Address::from_bits(unsafe {
            if self.is_watched() { entry.hand_out_marked() } else { entry.hand_out() }
        })
    }

    /// The end of an allocation that is watched.
    #[cold]
    pub(crate) fn watch_allocation(&self, layout: Layout, got: Result<Address>) -> Result<Address> {
        let size = layout.size() as u64;
        let got = got.and_then(|address| self.check_new(address, layout));
        match &got {
            Ok(address) => {
                let block = self.locate(*address).map_or(0, |place| place.span.block());
                self.remember(EventKind::Allocate, *address, (size, block));
            }
            Err(error) => {
                let nowhere = Address::from_bits(0);
                self.remember_refusal(EventKind::AllocateRefused, nowhere, (size, 0), reason(error));
            }
        }
        self.tell_faults();
        got
    }

    /// A block that was just handed out: whether anybody wrote to it while it was free. Fills it, and remembers where it was
    /// allocated, as far as that is wanted.
    fn check_new(&self, address: Address, layout: Layout) -> Result<Address> {
        let Some(place) = self.locate(address) else { return Ok(address) };
        let size = place.span.block();
        if place.state.load(Ordering::Relaxed) & POISONED != 0 {
            place.state.fetch_and(!POISONED, Ordering::AcqRel);
            if let Err(error) = self.check_poison(address, size) {
                // It goes back as if it had been freed, poisoned anew: the next to get it finds what is written from now on.
                if place.state.fetch_and(!LIVE, Ordering::AcqRel) & LIVE != 0 {
                    self.put(place, address)?;
                }
                return Err(error);
            }
        }
        if matches!(self.settings.watched.poison, Poison::All) {
            self.fill_new(address, size);
        }
        if matches!(self.settings.watched.leaks, Leaks::Sites)
            && self.watch.sites.remember(address, layout.size() as u64, self.watch.now())
        {
            place.state.fetch_or(SITED, Ordering::AcqRel);
        }
        Ok(address)
    }

    /// A free that is watched, by a thread that is not inside.
    #[cold]
    pub(crate) fn free_watched(&self, address: Address) -> Result<()> {
        self.watch_freed(address, self.free_slow(address))
    }

    /// The end of a free that is watched.
    #[cold]
    pub(crate) fn watch_freed(&self, address: Address, freed: Result<()>) -> Result<()> {
        let freed = freed.map_err(|error| self.watch_refusal(address, error));
        self.tell_faults();
        freed
    }

    /// A free was refused: the error, with what the history knows.
    #[cold]
    pub(crate) fn watch_refusal(&self, address: Address, error: Error) -> Error {
        if !self.watch.history.is_on() {
            return error;
        }
        let past = || self.watch.history.last_free(address, self.watch.now());
        let error = match error {
            Error::NotAllocated { address } => past().map_or(error, |by| Error::FreedTwice { address, by }),
            _ => error,
        };
        self.remember_refusal(EventKind::FreeRefused, address, (0, 0), reason(&error));
        error
    }

    /// A block that is watched has lost its life: to a free whose caller goes on with it.
    pub(crate) fn watch_free(&self, place: Place<'_>, old: u8, address: Address) {
        if old & SITED != 0 {
            self.watch.sites.forget(address);
        }
        self.remember(EventKind::Free, address, (0, place.span.block()));
    }

    /// The pool goes. Nobody else uses it any more; but in a forked child what is shared is the parent's.
    pub(crate) fn watch_end(&self) {
        if self.is_frozen() {
            return;
        }
        if self.is_watched() {
            self.end_quarantine(0);
            for span in (1..self.spans.end()).filter_map(|number| self.spans.get(number)) {
                self.check_span(span);
            }
            self.tell_faults();
        }
        self.tell_leaks(LeakTime::PoolEnd);
    }

    /// Memory was given back. The caller holds no lock.
    pub(crate) fn watch_trim(&self, keep: u64, went: usize) {
        self.remember(EventKind::Trim, Address::from_bits(0), (went as u64, keep));
        self.tell_faults();
    }
}
