//! Users of several blocks and exports, taken together.

use std::sync::Arc;

use super::items::Users;
use crate::observer::Leases;
use umf_core::{Address, Completion, Progress};

/// Collects leases and completions, each once. Takes no memory for the first of each.
#[derive(Default)]
pub(crate) struct Joined {
    leases: Distinct<dyn Leases>,
    completions: Distinct<dyn Completion>,
    /// A completion that was collected is lost, and the log says so already.
    pub(super) lost: bool,
}

impl Joined {
    pub(crate) fn add(&mut self, leases: Arc<dyn Leases>) {
        self.leases.add(leases);
    }

    pub(super) fn add_users(&mut self, users: Users) {
        users.leases.into_iter().for_each(|leases| self.leases.add(leases));
        users.completion.into_iter().for_each(|completion| self.completions.add(completion));
    }

    /// The leases alone.
    pub(crate) fn all(self) -> Option<Arc<dyn Leases>> {
        self.leases.all(|all| Arc::new(Many(all)))
    }

    pub(super) fn users(self) -> Users {
        let completion = self.completions.all(|all| Arc::new(Many(all)));
        Users { leases: self.leases.all(|all| Arc::new(Many(all))), completion }
    }
}

struct Distinct<T: ?Sized> {
    first: Option<Arc<T>>,
    others: Vec<Arc<T>>,
}

impl<T: ?Sized> Default for Distinct<T> {
    fn default() -> Self {
        Self { first: None, others: Vec::new() }
    }
}

impl<T: ?Sized> Distinct<T> {
    fn add(&mut self, one: Arc<T>) {
        let same = |known: &Arc<T>| core::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&one));
        match &self.first {
            None => self.first = Some(one),
            // Of one exporter or stream, most likely: it gives the same out each time.
            Some(first) if same(first) || self.others.last().is_some_and(same) => {}
            Some(_) => self.others.push(one),
        }
    }

    fn all(self, join: impl FnOnce(Vec<Arc<T>>) -> Arc<T>) -> Option<Arc<T>> {
        let first = self.first?;
        if self.others.is_empty() {
            return Some(first);
        }
        let mut all = self.others;
        all.push(first);
        Some(join(all))
    }
}

struct Many<T: ?Sized>(Vec<Arc<T>>);

impl Leases for Many<dyn Leases> {
    fn is_leased(&self, base: Address, size: usize) -> bool {
        self.0.iter().any(|leases| leases.is_leased(base, size))
    }
}

impl Completion for Many<dyn Completion> {
    /// Lost if one is lost, and otherwise pending if one is pending.
    fn progress(&self) -> Progress {
        let mut all = Progress::Ready;
        for completion in &self.0 {
            match completion.progress() {
                Progress::Ready => {}
                Progress::Pending => all = Progress::Pending,
                Progress::Lost => return Progress::Lost,
            }
        }
        all
    }
}
