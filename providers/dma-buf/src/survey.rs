//! Availability of dma-buf sources on this machine. Each is tested by creating a buffer of one
//! page.

use umf_core::Error;
use umf_os::page_size;

use crate::source::{Heap, Udmabuf};

/// Availability of `/dev/udmabuf`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdmabufReport {
    /// The result of creating a buffer; an error says what to do.
    pub works: Result<(), Error>,
    /// Limit of the bytes of a buffer.
    pub size_limit: Option<u64>,
    /// Limit of the parts of a buffer.
    pub parts_limit: Option<u64>,
}

/// Availability of a heap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeapReport {
    /// The name of the heap.
    pub name: String,
    /// The result of creating a buffer; an error says what to do.
    pub works: Result<(), Error>,
}

/// Tests `/dev/udmabuf`.
#[must_use]
pub fn udmabuf() -> UdmabufReport {
    UdmabufReport {
        works: Udmabuf::open().and_then(|device| device.create(page_size())).map(drop),
        size_limit: Udmabuf::size_limit(),
        parts_limit: Udmabuf::parts_limit(),
    }
}

/// Tests each heap.
#[must_use]
pub fn heaps() -> Vec<HeapReport> {
    let one = |name: String| {
        let works = Heap::open(&name).and_then(|heap| heap.create(page_size())).map(drop);
        HeapReport { name, works }
    };
    Heap::names().into_iter().map(one).collect()
}
