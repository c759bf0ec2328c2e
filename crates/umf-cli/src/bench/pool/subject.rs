//! [`Subject`]: an allocator of any type, with a name.

use super::allocator::{Allocator, Touched};
use super::churn::{self, Churn};
use super::orders::{self, Order, Plan};
use super::{metadata, scaling};
use crate::failure::Failure;

/// Who is measured.
pub(super) trait Subject {
    /// The name in the rows.
    fn name(&self) -> &'static str;

    /// Whether the plan is for it.
    fn takes_part(&self, plan: &Plan) -> bool;

    /// Carries the plan out: nanoseconds per allocation and free, many times.
    fn run(&self, plan: &Plan) -> Result<Vec<f64>, Failure>;

    /// How many allocations and frees all threads of the plan do in a second.
    fn throughput(&self, plan: &Plan, count: usize) -> Result<f64, Failure>;

    /// Churns; `None` if it does not say what it has reserved.
    fn churn(&self, churn: &Churn) -> Result<Option<f64>, Failure>;

    /// What it needs for itself if it hands out so many bytes; `None` as above.
    fn metadata(&self, bytes: usize) -> Result<Option<f64>, Failure>;
}

/// What a subject is for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "peers"),
    expect(dead_code, reason = "the peers that are only for some are not built in")
)]
pub(super) enum For {
    Everything,
    /// It has no lock and no memory: for one thread that touches nothing.
    OneThread,
    /// It has no memory: for those that touch nothing, except one thread.
    ManyThreads,
}

/// An allocator under its name.
pub(super) struct Named<'a, A> {
    pub name: &'static str,
    pub allocator: &'a A,
    pub is_for: For,
}

impl<'a, A: Allocator> Named<'a, A> {
    pub(super) const fn new(name: &'static str, allocator: &'a A) -> Self {
        Named { name, allocator, is_for: For::Everything }
    }
}

impl<A: Allocator> Subject for Named<'_, A> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn takes_part(&self, plan: &Plan) -> bool {
        let alone = plan.threads == 1 && !matches!(plan.order, Order::CrossFree | Order::Larson);
        match self.is_for {
            For::Everything => true,
            For::OneThread => !plan.touched && alone,
            For::ManyThreads => !plan.touched && !alone,
        }
    }

    fn run(&self, plan: &Plan) -> Result<Vec<f64>, Failure> {
        if plan.touched {
            return orders::run(&Touched(self.allocator), plan);
        }
        orders::run(self.allocator, plan)
    }

    fn throughput(&self, plan: &Plan, count: usize) -> Result<f64, Failure> {
        scaling::throughput(self.allocator, plan, count)
    }

    fn churn(&self, churn: &Churn) -> Result<Option<f64>, Failure> {
        churn::run(self.allocator, churn)
    }

    fn metadata(&self, bytes: usize) -> Result<Option<f64>, Failure> {
        metadata::run(self.allocator, bytes)
    }
}
