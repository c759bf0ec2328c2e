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

pub(super) use rows::{alone, measure};
