//! [`RecvRequest`]: a receive that was begun.

use std::sync::Arc;

use super::Received;
use super::incoming::Receiving;
use crate::shared::Shared;

/// A receive that [`crate::Link::start_recv`] has begun. Its memory is written during calls that are given it, and at no other
/// time. Dropping it leaves the message where it is.
#[derive(Debug)]
pub struct RecvRequest<'d> {
    shared: Arc<Shared>,
    pub(super) receiving: Receiving<'d>,
    pub(super) received: Option<Received>,
}

impl<'d> RecvRequest<'d> {
    pub(super) const fn new(shared: Arc<Shared>, receiving: Receiving<'d>) -> Self {
        Self { shared, receiving, received: None }
    }

    /// What was received, if it was.
    #[must_use]
    pub const fn received(&self) -> Option<Received> {
        self.received
    }

    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}
