//! [`SendRequest`]: a message that was begun.

use std::sync::Arc;

use super::outgoing::Sending;
use crate::shared::Shared;

/// A message that [`crate::Link::start_send`] has begun. Dropping it withdraws the message, unless that was received.
#[derive(Debug)]
#[must_use = "a message that was begun is withdrawn when its request is dropped"]
pub struct SendRequest<'d> {
    shared: Arc<Shared>,
    pub(super) sending: Sending<'d>,
}

impl<'d> SendRequest<'d> {
    pub(super) const fn new(shared: Arc<Shared>, sending: Sending<'d>) -> Self {
        Self { shared, sending }
    }

    /// Whether the message was sent.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.sending.is_done()
    }

    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl Drop for SendRequest<'_> {
    fn drop(&mut self) {
        if self.shared.mine.is_here() {
            self.sending.withdraw(&self.shared);
        }
    }
}
