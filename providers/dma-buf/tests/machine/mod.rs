//! What the tests ask of the machine.
#![allow(dead_code, reason = "not every test binary asks everything")]

use umf_core::Result;
use umf_provider_dma_buf::DmaBufProvider;

/// What is lacking, if that could not be had.
pub fn lacks<T>(wanted: Result<T>) -> Option<String> {
    wanted.err().map(|error| error.to_string())
}

/// What is lacking for udmabufs on this many huge pages of 2 MiB.
pub fn lacks_huge_pages(count: u64) -> Option<String> {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free = free.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    lacks(DmaBufProvider::udmabuf()).or_else(|| {
        (free < count).then(|| format!("{free} free huge pages of 2 MiB, and {count} are needed"))
    })
}

/// Says why a test proves nothing here, in the form that `tests/run` lists.
pub fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}
