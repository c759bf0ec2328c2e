//! `umf bench pool`.

mod allocator;
mod c_pool;
mod churn;
mod host;
mod larson;
mod meeting;
mod metadata;
#[cfg(feature = "peers")]
mod offset;
mod orders;
mod ours;
mod rows;
mod scaling;
mod script;
mod subject;
mod subjects;
mod tcmalloc;
mod xfree;

pub(super) use c_pool::WithoutPool;
pub(super) use orders::{Order, run};
pub(super) use rows::{alone, measure, plan};
pub(super) use script::{MIDDLE, SMALL};
