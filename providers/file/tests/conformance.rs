//! The conformance suite over a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use umf_provider_file::{FileProvider, Mapped};
use umf_testkit::provider_conformance;

/// The file has no name any more when it is used.
fn provider(mapped: Mapped) -> Arc<FileProvider> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("umf-file-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let provider = FileProvider::open(&path, mapped, "test").unwrap();
    std::fs::remove_file(path).unwrap();
    provider
}

provider_conformance!(shared, || provider(Mapped::Shared));
provider_conformance!(private, || provider(Mapped::Private));
