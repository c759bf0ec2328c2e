//! The arenas pass the conformance suite of providers.

use own_provider::{Arena, SharedArena};

umf_testkit::provider_conformance!(arena, || Arena::new("test", 1 << 30).unwrap());
umf_testkit::provider_conformance!(shared_arena, || SharedArena::new("test", 1 << 30).unwrap());
