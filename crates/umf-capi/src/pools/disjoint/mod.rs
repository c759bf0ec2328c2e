//! `umf/pools/pool_disjoint.h`: the slab pool.

mod control;
mod counts;
mod limits;
mod operations;
mod params;
mod state;

pub(crate) use operations::FUNCTIONS;
pub(crate) use state::{Disjoint, layout};
