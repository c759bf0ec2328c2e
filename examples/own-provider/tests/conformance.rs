//! The arena passes the conformance suite of providers.

use own_provider::Arena;

umf_testkit::provider_conformance!(arena, || Arena::new("test", 1 << 30).unwrap());
