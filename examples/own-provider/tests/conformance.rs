//! The arena does what a provider must do.

use own_provider::Arena;

umf_testkit::provider_conformance!(arena, || Arena::new("test", 1 << 30).unwrap());
