//! `umf/pools/pool_jemalloc.h`: jemalloc over any provider. Without the feature `jemalloc` it answers as the original does that was
//! built without it.

#[cfg(not(feature = "jemalloc"))]
mod absent;
#[cfg(feature = "jemalloc")]
mod operations;
#[cfg(feature = "jemalloc")]
mod params;
