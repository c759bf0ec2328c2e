//! The conformance suite over every source of dma-bufs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod machine;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use machine::{lacks, lacks_huge_pages};
use umf_core::{Layout, Provider};
use umf_provider_dma_buf::DmaBufProvider;
use umf_testkit::provider_conformance;

provider_conformance!(udmabuf, || DmaBufProvider::udmabuf().unwrap().build().unwrap(),
    lacks: || lacks(DmaBufProvider::udmabuf()));
provider_conformance!(on_huge_pages, || DmaBufProvider::udmabuf().unwrap().huge_page(2 << 20).build().unwrap(),
    lacks: || lacks_huge_pages(64));
provider_conformance!(system_heap, || DmaBufProvider::heap("system").unwrap().build().unwrap(),
    lacks: || lacks(DmaBufProvider::heap("system")));
provider_conformance!(over_one_buffer, over, lacks: || lacks(DmaBufProvider::udmabuf()));

/// Returns a provider over a buffer that no live provider uses. The buffers are large, so they are
/// reused.
fn over() -> Arc<DmaBufProvider> {
    static BUFFERS: Mutex<Vec<(OwnedFd, Weak<DmaBufProvider>)>> = Mutex::new(Vec::new());
    let mut buffers = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    let place = buffers.iter().position(|(_, user)| user.strong_count() == 0).unwrap_or_else(|| {
        let maker = DmaBufProvider::udmabuf().unwrap().build().unwrap();
        let region = maker.allocate(Layout::new(40 << 20, 4096).unwrap()).unwrap();
        let exported = Provider::export(&*maker).unwrap().export(&region).unwrap();
        buffers.push((exported.fd.unwrap().try_clone().unwrap(), Weak::new()));
        // SAFETY: nothing uses the region. The test's fd keeps the buffer.
        unsafe { maker.free(region) }.unwrap();
        buffers.len() - 1
    });
    let (buffer, user) = &mut buffers[place];
    let provider = DmaBufProvider::over(buffer.try_clone().unwrap()).unwrap().build().unwrap();
    *user = Arc::downgrade(&provider);
    provider
}
