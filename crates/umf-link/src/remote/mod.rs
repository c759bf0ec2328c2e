//! One-sided transfers: ranges that are registered, and `put` and `get` on them.
//!
//! ```text
//! registry   what this process has registered: keys are held against it
//! places     which bytes of a range are meant
//! direct     by who asks, in the owner's memory: mapped, or by the kernel
//! calls      by the owner, at the request of who asks        serve  the owner's part of that
//! ```

mod calls;
mod direct;
mod places;
mod registry;
mod serve;

pub use places::{Places, Span};
pub use registry::Registration;
pub(crate) use registry::Registry;

use core::sync::atomic::Ordering;

use crate::key::RemoteKey;
use crate::layout::{self, REGISTERED};
use crate::parts::List;
use crate::protocol::Load;
use crate::shared::Shared;
use crate::wait::{Limit, Pulse};
use crate::{Engine, Error, LinkStatistics, Result};
use calls::Calls;
use places::Spans;

/// Which way bytes go, as who asks sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Get = 1,
    Put = 2,
}

/// What the asking half keeps in mind.
#[derive(Debug)]
pub(crate) struct Remote {
    calls: Calls,
}

/// A transfer that was found to be in order.
#[derive(Debug)]
pub(super) struct Transfer<'t> {
    pub way: Way,
    pub key: RemoteKey,
    pub spans: Spans,
    pub local: &'t List<'t>,
}

impl Transfer<'_> {
    /// Whether the range is registered, as its owner says.
    fn is_current(&self, shared: &Shared) -> bool {
        let word = shared.theirs.word(layout::range(self.key.slot));
        word.load(Ordering::Acquire) == self.key.generation
    }

    fn expired(&self) -> Error {
        Error::Expired { slot: self.key.slot, generation: self.key.generation }
    }

    fn not_allowed(&self) -> Error {
        let what = if self.way == Way::Get { "get" } else { "put" };
        Error::NotAllowed { what, allowed: self.key.access }
    }
}

/// Who asks: the sending half.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    pub shared: &'a Shared,
    pub pulse: &'a mut Pulse,
    pub limit: Limit,
    pub statistics: &'a mut LinkStatistics,
}

impl Remote {
    pub(crate) const fn new() -> Self {
        Self { calls: Calls::new() }
    }

    /// Copies between places of a registered range of the peer and the equally long `local`.
    pub(crate) fn transfer(
        &mut self,
        mut asking: Asking<'_>,
        way: Way,
        key: &RemoteKey,
        places: Places<'_>,
        local: &List<'_>,
    ) -> Result<Engine> {
        let shared = asking.shared;
        if key.owner != shared.me.other() || key.nonce != shared.mine.nonce() {
            return Err(Error::OtherKey);
        }
        if local.reduction().is_some() {
            return Err(Error::NotCombined);
        }
        let spans = places.within(key.len(), local.len())?;
        let transfer = Transfer { way, key: *key, spans, local };
        let is_allowed = if way == Way::Get { key.access.allows_get() } else { key.access.allows_put() };
        if !is_allowed {
            return Err(transfer.not_allowed());
        }
        shared.populate_theirs(REGISTERED)?;
        if !transfer.is_current(shared) {
            return Err(transfer.expired());
        }
        // The engines that messages alone have leave the choice to this.
        let forced = shared.settings.engine.filter(|engine| !matches!(engine, Engine::Inline | Engine::Both));
        let engine = match forced {
            Some(Engine::Bounce) => Err(String::new()),
            forced => direct::by_itself(&mut asking, &transfer, forced)?,
        };
        let engine = match (engine, forced) {
            (Ok(engine), _) => engine,
            (Err(_), None | Some(Engine::Bounce)) => {
                self.calls.transfer(&mut asking, &transfer)?;
                Engine::Bounce
            }
            (Err(why), Some(engine)) => return Err(Error::EngineImpossible { engine, why }),
        };
        match way {
            Way::Get => asking.statistics.got.add(local.len()),
            Way::Put => asking.statistics.put.add(local.len()),
        }
        Ok(engine)
    }
}
