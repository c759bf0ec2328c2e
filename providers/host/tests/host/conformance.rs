//! The conformance suite over every kind of host memory.

use std::sync::atomic::{AtomicU32, Ordering};

use umf_core::Visibility;
use umf_provider_host::{HostBuilder, HostProvider, HugePages};
use umf_testkit::provider_conformance;

fn shared() -> HostBuilder {
    HostProvider::builder().visibility(Visibility::Shared)
}

fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("/umf-conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

provider_conformance!(private, || HostProvider::builder().build().unwrap());
provider_conformance!(private_populated, || HostProvider::builder().populate(true).build().unwrap());
provider_conformance!(private_huge, || {
    HostProvider::builder().huge_pages(HugePages::Transparent).build().unwrap()
});
provider_conformance!(in_arenas, || shared().build().unwrap());
provider_conformance!(in_small_arenas, || shared().arena_size(1 << 20).build().unwrap());
provider_conformance!(in_reserved_arenas, || shared().populate(true).build().unwrap());
provider_conformance!(shared_huge, || shared().huge_pages(HugePages::Transparent).build().unwrap());
provider_conformance!(isolated, || shared().isolate(true).build().unwrap());
provider_conformance!(read_only, || shared().read_only_export(true).build().unwrap());
provider_conformance!(named, || {
    shared().named(fresh_name()).allow_unsealed_imports(true).build().unwrap()
});
