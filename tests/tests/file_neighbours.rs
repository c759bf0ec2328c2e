//! Opening a provider over a file does not change the mappings of other threads.
//!
//! A provider tests whether its file is on persistent memory, with a mapping that most file systems
//! refuse. Meanwhile other threads map and unmap memory, and check its content.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use umf_core::Visibility;
use umf_provider_file::FileProvider;

/// Number of providers to open, unless a mapping is damaged before.
const PROVIDERS: usize = 20_000;
/// Pages of one mapping. Several neighbouring mappings fill the gap of a refused mapping of 2 MiB.
const PAGES: usize = 64;
const PAGE: usize = 4096;
/// Number of concurrent mappings of a thread.
const MAPPINGS: usize = 16;

/// An anonymous mapping whose pages each begin with their number.
struct Marked(*mut u8);

impl Marked {
    fn new() -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), PAGES * PAGE, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let marked = Self(start.cast());
        for page in 0..PAGES {
            // The kernel writes the word, so that an unmapped page is an error instead of a fault.
            // `is_intact` detects it.
            marked.transfer(page, &mut (page as u64 + 1), true);
        }
        marked
    }

    /// Copies the first word of a page by a system call. Returns `false` if the page is not mapped.
    fn transfer(&self, page: usize, word: &mut u64, write: bool) -> bool {
        let local = libc::iovec { iov_base: std::ptr::from_mut(word).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: self.0.wrapping_add(page * PAGE).cast(), iov_len: 8 };
        // SAFETY: the local part is a word; the kernel checks the remote part.
        let copied = unsafe {
            let pid = libc::getpid();
            if write {
                libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0)
            } else {
                libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0)
            }
        };
        copied == 8
    }

    /// Returns whether all pages are mapped and have their content.
    fn is_intact(&self) -> bool {
        (0..PAGES).all(|page| {
            let mut word = 0;
            self.transfer(page, &mut word, false) && word == page as u64 + 1
        })
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping.
        unsafe { libc::munmap(self.0.cast(), PAGES * PAGE) };
    }
}

#[test]
fn opening_file_provider_keeps_mappings_of_other_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (stop, damaged) = (AtomicBool::new(false), AtomicBool::new(false));
    let opened = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mappings: Vec<_> = (0..MAPPINGS).map(|_| Marked::new()).collect();
                    std::thread::yield_now();
                    if !mappings.iter().all(Marked::is_intact) {
                        damaged.store(true, Ordering::Relaxed);
                        // Unmapping could remove a new mapping of another thread.
                        std::mem::forget(mappings);
                        return;
                    }
                }
            });
        }
        let opened = (0..PROVIDERS)
            .take_while(|number| {
                let path = folder.path().join(number.to_string());
                drop(FileProvider::open(&path, Visibility::Shared, "neighbour").unwrap());
                std::fs::remove_file(&path).unwrap();
                !damaged.load(Ordering::Relaxed)
            })
            .count();
        stop.store(true, Ordering::Relaxed);
        opened
    });
    assert!(!damaged.load(Ordering::Relaxed), "provider {opened} unmapped memory of another thread");
}
