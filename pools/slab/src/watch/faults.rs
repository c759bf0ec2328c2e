//! [`Faults`]: what was found, until it can be told: whoever is told may do anything, and so is told where no lock is held.

use umf_core::Error;
use umf_core::history::{EventKind, reason};
use umf_sync::Lock;

use crate::SlabPool;

/// So many are told at one time; of more only how many there were.
const ROOM: usize = 16;

struct Found {
    faults: [Option<Error>; ROOM],
    count: usize,
}

impl Found {
    const NONE: Self = Self { faults: [None; ROOM], count: 0 };
}

pub(crate) struct Faults(Lock<Found>);

impl Faults {
    pub(crate) const fn new() -> Self {
        Self(Lock::new(Found::NONE))
    }
}

impl SlabPool {
    /// Somebody made a mistake.
    pub(crate) fn found(&self, fault: Error) {
        if let Error::WrittenAfterFree { address, size, .. } = fault {
            let kind = EventKind::WrittenAfterFree;
            self.remember_refusal(kind, address, (size as u64, size as u64), reason(&fault));
        }
        let mut found = self.watch.faults.0.lock();
        if let Some(place) = found.faults.iter_mut().find(|place| place.is_none()) {
            *place = Some(fault);
        }
        found.count += 1;
    }

    /// Tells what was found. The caller is not inside, and holds no lock.
    pub(crate) fn tell_faults(&self) {
        let mut found = {
            let mut found = self.watch.faults.0.lock();
            if found.count == 0 {
                return;
            }
            core::mem::replace(&mut *found, Found::NONE)
        };
        for fault in found.faults.iter_mut().filter_map(Option::take) {
            self.tell_fault(&fault);
        }
        if let Some(more) = found.count.checked_sub(ROOM).filter(|&more| more > 0) {
            self.tell(&format_args!("pool {}: {more} more such faults", self.settings.name.as_str()));
        }
    }

    fn tell_fault(&self, fault: &Error) {
        self.tell(&format_args!("pool {}: {fault}", self.settings.name.as_str()));
        if let Some(hook) = &self.settings.watched.on_fault {
            hook.call(fault);
        }
    }

    fn tell(&self, text: &dyn core::fmt::Display) {
        if self.watch.is_global {
            umf_os::output::write_to_stderr(text);
        } else {
            umf_os::output::event(|| tracing::error!(pool = self.settings.name.as_str(), "{text}"));
        }
    }
}
