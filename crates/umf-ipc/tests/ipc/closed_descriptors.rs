//! A program that closes all descriptors, as daemons do, and opens files of its own under their
//! numbers. Alone in its process, whose descriptors it closes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use umf_core::{Error, Layout, Pool, Visibility};
use umf_ipc::{Exchange, Exporter, ExporterSettings, Importer, Mode};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_host::{HostImport, HostProvider};

static OWN: [u8; 1 << 16] = [0x5a; 1 << 16];

/// The numbers of all descriptors but the standard streams; `None` without `/proc`.
fn numbers() -> Option<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let names = entries.map(|entry| entry.unwrap().file_name());
    let numbers = names.map(|name| name.to_str().unwrap().parse().unwrap());
    Some(numbers.filter(|&number: &i32| number > 2).collect())
}

#[test]
fn files_of_the_program_are_left_alone() {
    if ran_alone("closed_descriptors::files_of_the_program_are_left_alone") {
        return;
    }
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let mut settings = ExporterSettings::default();
    // Without a socket, whose thread has descriptors, too.
    settings.exchange = Exchange::only(Mode::Procfs);
    let exporter = Exporter::new(settings).unwrap();
    let layout = |size| Layout::new(size, 16).unwrap();
    let blocks: Vec<_> = (0..20).map(|_| pool.allocate(layout(100_000)).unwrap()).collect();
    // SAFETY: the test does not touch the memory.
    let handles = [0, 1].map(|block| unsafe { exporter.handle(blocks[block]) }.unwrap());
    let import = Arc::new(HostImport::new());
    let exchange = Exchange::only(Mode::Procfs);
    let importer = Importer::builder().import(import).exchange(exchange).build().unwrap();
    let mapping = importer.open(&handles[0]).unwrap();

    let Some(numbers) = numbers() else {
        println!("umf-skip: closing descriptors: /proc/self/fd does not show them");
        return;
    };
    for &number in &numbers {
        // SAFETY: under test is what becomes of objects whose descriptors are closed.
        unsafe { libc::close(number) };
    }
    let mut files: Vec<OwnedFd> = Vec::new();
    while files.last().is_none_or(|file| numbers.iter().any(|&number| number > file.as_raw_fd())) {
        let file = rustix::fs::memfd_create(c"own", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::pwrite(&file, &OWN, 0), Ok(OWN.len()));
        files.push(file);
    }

    assert!(mapping.is_current());
    importer.open(&handles[1]).unwrap();
    drop(mapping);
    drop(importer);
    for block in blocks {
        // SAFETY: the test's own block, which nothing uses.
        unsafe { pool.free(block) }.unwrap();
    }
    assert!(pool.trim(0).unwrap() > 0);
    let refused = pool.allocate(layout(64 << 20));
    assert!(matches!(refused, Err(Error::Native { native: libc::EBADF, .. })), "{refused:?}");
    drop(exporter);
    drop(pool);

    for file in files {
        let mut content = vec![0; OWN.len()];
        assert_eq!(rustix::io::pread(&file, &mut content[..], 0), Ok(OWN.len()));
        assert!(content == OWN, "the program's file has changed");
        let size = rustix::fs::fstat(&file).unwrap().st_size;
        assert_eq!(size, i64::try_from(OWN.len()).unwrap());
    }
}
