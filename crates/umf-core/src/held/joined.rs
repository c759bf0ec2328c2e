//! Leases of several exports, taken together.

use std::sync::Arc;

use crate::Address;
use crate::observer::Leases;

/// Collects leases, each once. Takes no memory for the first.
#[derive(Default)]
pub(crate) struct Joined {
    first: Option<Arc<dyn Leases>>,
    others: Vec<Arc<dyn Leases>>,
}

impl Joined {
    pub(crate) fn add(&mut self, leases: Arc<dyn Leases>) {
        let same = |known: &Arc<dyn Leases>| core::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&leases));
        match &self.first {
            None => self.first = Some(leases),
            // Of one exporter, most likely: it gives the same out each time.
            Some(first) if same(first) || self.others.last().is_some_and(same) => {}
            Some(_) => self.others.push(leases),
        }
    }

    pub(crate) fn all(self) -> Option<Arc<dyn Leases>> {
        let first = self.first?;
        if self.others.is_empty() {
            return Some(first);
        }
        let mut all = self.others;
        all.push(first);
        Some(Arc::new(Many(all)))
    }
}

struct Many(Vec<Arc<dyn Leases>>);

impl Leases for Many {
    fn is_leased(&self, base: Address, size: usize) -> bool {
        self.0.iter().any(|leases| leases.is_leased(base, size))
    }
}
