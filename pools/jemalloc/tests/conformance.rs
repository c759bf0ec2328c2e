//! The conformance suite, against the jemalloc pool.

use umf_pool_jemalloc::{JemallocPool, JemallocSettings};

umf_testkit::pool_conformance!(jemalloc, |provider| JemallocPool::new(provider).unwrap());

umf_testkit::pool_conformance!(one_arena, |provider| {
    JemallocPool::with_settings(provider, JemallocSettings::default().arenas(1)).unwrap()
});
