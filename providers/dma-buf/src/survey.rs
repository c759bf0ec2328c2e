//! What this machine has of dma-bufs, and what is in the way. Everything is tried out with one page that is let go of at once.

use umf_core::Error;
use umf_os::page_size;

use crate::source::{Heap, Udmabuf};

/// What `/dev/udmabuf` is good for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdmabufReport {
    /// Whether a buffer could be made, or why not and what to do.
    pub works: Result<(), Error>,
    /// The most bytes of one buffer.
    pub size_limit: Option<u64>,
    /// The most parts of one buffer.
    pub parts_limit: Option<u64>,
}

/// What a heap is good for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeapReport {
    /// Its name.
    pub name: String,
    /// Whether a buffer could be made, or why not and what to do.
    pub works: Result<(), Error>,
}

/// Tries `/dev/udmabuf`.
#[must_use]
pub fn udmabuf() -> UdmabufReport {
    UdmabufReport {
        works: Udmabuf::open().and_then(|device| device.make(page_size())).map(drop),
        size_limit: Udmabuf::size_limit(),
        parts_limit: Udmabuf::parts_limit(),
    }
}

/// Tries each heap.
#[must_use]
pub fn heaps() -> Vec<HeapReport> {
    let one = |name: String| {
        let works = Heap::open(&name).and_then(|heap| heap.make(page_size())).map(drop);
        HeapReport { name, works }
    };
    Heap::names().into_iter().map(one).collect()
}
