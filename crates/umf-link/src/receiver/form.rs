//! [`Form`]: a message as it came, memory that was handed over or a word.

use std::sync::Arc;

use super::incoming::{Found, Incoming};
use super::{Receives, View};
use crate::queue::Body;
use crate::shared::Shared;
use crate::{Link, Result, TagMatch};

#[derive(Debug)]
pub(crate) enum Form {
    /// Memory, which is opened.
    View(View),
    /// Memory of this length, which cannot be opened here, and was given back.
    Unopened { tag: u64, length: usize },
    /// A short message, and its first eight bytes.
    Word { tag: u64, word: Option<u64> },
    /// Something else, which stays.
    Other { tag: u64 },
}

impl<S> Link<S, Receives> {
    /// Takes the first message that fits, if it is there.
    pub(crate) fn form(&mut self, wanted: TagMatch, asleep: bool) -> Result<Option<Form>> {
        let mut found = self.receives.incoming.poll(&self.shared, wanted, None, asleep)?;
        if found.is_none()
            && let Err(end) = self.receives.pulse.check(&self.shared)
        {
            // What it did last may have come.
            found = self.receives.incoming.poll(&self.shared, wanted, None, true)?;
            if found.is_none() {
                return Err(end);
            }
        }
        match found {
            Some(Found::Queued(id)) => self.receives.incoming.form(&self.shared, id),
            _ => Ok(None),
        }
    }
}

impl Incoming {
    fn form(&mut self, shared: &Arc<Shared>, id: u64) -> Result<Option<Form>> {
        let Some(entry) = self.queue.get(id) else { return Ok(None) };
        let tag = entry.tag;
        let (index, length) = match &entry.body {
            Body::Kept(bytes) => {
                let word = bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
                self.queue.remove(id);
                return Ok(Some(Form::Word { tag, word }));
            }
            Body::Offered(offer) if offer.lent => (offer.index, offer.length),
            Body::Offered(_) => return Ok(Some(Form::Other { tag })),
        };
        match self.view(shared, id) {
            Ok(view) => Ok(view.map(Form::View)),
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "memory of a rank cannot be opened");
                self.statistics.refused_mapped += 1;
                self.queue.remove(id);
                shared.give_back(index);
                Ok(Some(Form::Unopened { tag, length }))
            }
        }
    }
}
