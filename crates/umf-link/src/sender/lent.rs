//! [`Lent`]: memory that the peer has a view of.

use core::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::outgoing::Place;
use crate::Result;
use crate::shared::Shared;
use crate::wait::{Limit, Pulse, wait};

/// Memory that was handed over ([`crate::Link::hand_over`]). It borrows the memory, so that it is not freed before the peer has
/// opened it; dropping it leaves the memory with the peer.
#[derive(Debug)]
pub struct Lent<'d> {
    shared: Arc<Shared>,
    place: Place,
    memory: PhantomData<&'d [u8]>,
}

impl Lent<'_> {
    pub(super) const fn new(shared: Arc<Shared>, place: Place) -> Self {
        Self { shared, place, memory: PhantomData }
    }

    /// Whether the peer has given it back: no view of it is left there.
    #[must_use]
    pub fn is_back(&self) -> bool {
        self.shared.mine.is_here() && !self.place.is_open(&self.shared)
    }

    /// Waits until the peer has given it back; `None` waits until then or until the peer is gone.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`], [`crate::Error::PeerGone`] (then nobody has a view either), [`crate::Error::Closed`],
    /// [`crate::Error::Forked`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.shared.known()?;
        let (mut pulse, mut limit) = (Pulse::default(), Limit::new(timeout));
        wait(&self.shared, &mut pulse, &mut limit, "giving memory back", |_| {
            Ok((!self.place.is_open(&self.shared)).then_some(()))
        })
    }
}
