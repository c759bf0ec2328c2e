//! `umf/pools/pool_scalable.h`: a pool over oneTBB's allocator, which is opened when the first one is made.

mod operations;
mod params;
mod tbb;
