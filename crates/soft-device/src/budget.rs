//! Counted limits: bytes of a device, fds of the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Something of which there is so much.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// So much, all of it free.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// Takes so much, until the charge is dropped; says what is left if that is less.
    pub fn take(self: &Arc<Self>, amount: u64) -> Result<Charge, u64> {
        let limit = self.limit;
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(amount).filter(|sum| *sum <= limit)
            })
            .map_err(|used| limit.saturating_sub(used))?;
        Ok(Charge { budget: Arc::clone(self), amount })
    }

    /// How much there is.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How much of it is in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A part of a budget that is in use.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    amount: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}
