//! Messages that came before they were asked for, in the order in which they came.

use std::collections::VecDeque;

use crate::TagMatch;
use crate::offer::Offer;
use crate::tag::Context;

/// What is kept of a message.
#[derive(Debug)]
pub(crate) enum Body {
    /// All of it.
    Kept(Box<[u8]>),
    /// Where it is. A lent one is to be received as a view, or copied.
    Offered(Offer),
}

impl Body {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Kept(bytes) => bytes.len(),
            Self::Offered(offer) => offer.length,
        }
    }

    /// Bytes of this process's memory that it takes, about.
    fn weight(&self) -> u64 {
        let more = match self {
            Self::Kept(bytes) => bytes.len(),
            Self::Offered(offer) => size_of_val(offer.ranges.as_slice()),
        };
        (more + size_of::<Entry>()) as u64
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    /// Never used twice.
    pub id: u64,
    pub tag: u64,
    context: Context,
    /// Whether a receive is at it already.
    pub busy: bool,
    pub body: Body,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    weight: u64,
    next: u64,
}

impl Queue {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// About how many bytes of memory it takes.
    pub(crate) const fn weight(&self) -> u64 {
        self.weight
    }

    pub(crate) fn push(&mut self, tag: u64, context: Context, body: Body) -> u64 {
        self.next += 1;
        self.weight += body.weight();
        self.entries.push_back(Entry { id: self.next, tag, context, busy: false, body });
        self.next
    }

    /// The first that a receive takes.
    pub(crate) fn find(&self, wanted: TagMatch) -> Option<&Entry> {
        self.entries.iter().find(|entry| !entry.busy && wanted.takes(entry.tag, entry.context))
    }

    fn place(&self, id: u64) -> Option<usize> {
        // Ids are in order.
        self.entries.binary_search_by_key(&id, |entry| entry.id).ok()
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Entry> {
        self.entries.get(self.place(id)?)
    }

    pub(crate) fn set_busy(&mut self, id: u64, busy: bool) {
        if let Some(place) = self.place(id) {
            self.entries[place].busy = busy;
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(self.place(id)?)?;
        self.weight -= entry.body.weight();
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain list: the first that fits, in the order in which they came.
        #[test]
        fn the_first_that_fits(steps in prop::collection::vec((any::<bool>(), 0..6_u64, 0..4_u64), 1..200)) {
            let (mut queue, mut model) = (Queue::default(), Vec::<(u64, u64)>::new());
            for (number, (is_push, tag, mask)) in steps.into_iter().enumerate() {
                if is_push {
                    queue.push(tag, Context::Messages, Body::Kept(Box::from((number as u64).to_le_bytes())));
                    queue.push(tag, Context::Collectives, Body::Kept(Box::default()));
                    model.push((tag, number as u64));
                    continue;
                }
                let wanted = [TagMatch::ANY, TagMatch::tag(tag), TagMatch::masked(tag, mask)][mask as usize % 3];
                let expected = model.iter().position(|(tag, _)| wanted.fits(*tag));
                let found = queue.find(wanted).map(|entry| entry.id);
                prop_assert_eq!(found.is_some(), expected.is_some());
                if let (Some(id), Some(place)) = (found, expected) {
                    let (tag, number) = model.remove(place);
                    let entry = queue.remove(id).unwrap();
                    prop_assert_eq!(entry.tag, tag);
                    prop_assert!(matches!(&entry.body, Body::Kept(bytes) if **bytes == number.to_le_bytes()));
                }
            }
            // What others sent is there still.
            while let Some(id) = queue.find(TagMatch::ANY.within(Context::Collectives)).map(|entry| entry.id) {
                queue.remove(id);
            }
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert_eq!(queue.weight() == 0, model.is_empty());
        }

        #[test]
        fn masks_are_what_they_say(tag in any::<u64>(), wanted in any::<u64>(), mask in any::<u64>()) {
            prop_assert_eq!(TagMatch::masked(wanted, mask).fits(tag), tag & mask == wanted & mask);
        }
    }
}
