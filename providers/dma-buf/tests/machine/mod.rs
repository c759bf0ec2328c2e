//! Helpers of the tests: sources that the machine lacks, and skipped tests.
#![allow(dead_code, reason = "each test program uses some of them")]

use umf_core::Result;
use umf_provider_dma_buf::DmaBufProvider;

/// Returns the error of a result as text.
pub fn lacks<T>(wanted: Result<T>) -> Option<String> {
    wanted.err().map(|error| error.to_string())
}

/// Returns why udmabufs on `count` huge pages of 2 MiB are unavailable; `None` if they are
/// available.
pub fn lacks_huge_pages(count: u64) -> Option<String> {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free = free.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    lacks(DmaBufProvider::udmabuf()).or_else(|| {
        (free < count).then(|| format!("{free} free huge pages of 2 MiB, and {count} are needed"))
    })
}

/// Reports why a test is skipped, in the form that `tests/run` lists.
pub fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}
