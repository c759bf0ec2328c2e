//! Shared memory: the lifetime of files, ranges, pages and names.

use crate::machine;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::machine::{
    byte, committed, export, fd, free, in_child, layout, request, set_limit, shared, touch,
};
use rustix::fs::{MemfdFlags, SealFlags};
use umf_core::{Access, Error, Import, Layout, Provider};
use umf_provider_host::{HostImport, HostProvider};

/// UMF's OS provider keeps the pages of freed regions, and never uses their ranges again.
#[test]
fn free_releases_pages_and_reuses_ranges() {
    let provider = shared().build().unwrap();
    let first = provider.allocate(layout(4096)).unwrap();
    let file = fd(&export(&provider, &first));
    let mut offsets = std::collections::BTreeSet::new();
    for _ in 0..16 {
        let region = provider.allocate(layout(16 << 20)).unwrap();
        offsets.insert(export(&provider, &region).offset);
        touch(&region, 1);
        assert!(committed(&*file) >= 16 << 20);
        free(&provider, region);
        assert!(committed(&*file) < 1 << 20, "{} bytes are still committed", committed(&*file));
    }
    assert_eq!(offsets.len(), 1, "a freed range was not reused");
    assert_eq!((provider.statistics().count(), provider.statistics().peak()), (1, (16 << 20) + 4096));
}

/// UMF's OS provider reports success and leaves the bytes.
#[test]
fn purging_zeroes_every_mapping_and_releases_pages() {
    let provider = shared().build().unwrap();
    let region = provider.allocate(layout(1 << 20)).unwrap();
    touch(&region, 9);
    let exported = export(&provider, &region);
    let imports = HostImport::new();
    let imported = imports.import(request(&exported, region.size(), Access::ReadOnly)).unwrap();
    let before = committed(&*fd(&exported));
    // SAFETY: the content is not used again.
    unsafe { provider.purge().unwrap().purge_forced(region.base(), region.size()) }.unwrap();
    assert!(committed(&*fd(&exported)) + (1 << 20) <= before);
    // SAFETY: the import is mapped until it is released.
    assert_eq!(unsafe { imported.base.as_ptr().unwrap().read_volatile() }, 0);
    assert_eq!(byte(&region, 4096), 0);
    // SAFETY: an error is expected, and the content is not needed.
    let lazily = unsafe { provider.purge().unwrap().purge_lazy(region.base(), region.size()) };
    assert!(matches!(lazily, Err(Error::NotSupported { .. })));
    // SAFETY: released once.
    unsafe { imports.release(imported) }.unwrap();
    free(&provider, region);
}

#[test]
fn files_are_sealed_and_closed_on_exec() {
    for (provider, read_only) in
        [(shared(), false), (shared().isolate(true), false), (shared().read_only_export(true), true)]
    {
        let provider = provider.build().unwrap();
        let region = provider.allocate(layout(4096)).unwrap();
        let exported = export(&provider, &region);
        assert_eq!(exported.read_only, read_only);
        let file = fd(&exported);
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        assert_eq!(seals.contains(SealFlags::FUTURE_WRITE), read_only);
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        let flags = rustix::io::fcntl_getfd(&file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        touch(&region, 1);
        free(&provider, region);
    }
}

#[test]
fn isolated_region_has_its_own_file() {
    let provider = shared().isolate(true).build().unwrap();
    let regions = [4096, 1 << 16].map(|size| provider.allocate(layout(size)).unwrap());
    let exports = regions.map(|region| export(&provider, &region));
    let stats = exports.clone().map(|export| rustix::fs::fstat(&*fd(&export)).unwrap());
    assert_ne!(stats[0].st_ino, stats[1].st_ino);
    for ((region, export), stat) in regions.iter().zip(&exports).zip(stats) {
        assert!(export.isolated);
        assert_eq!(stat.st_size, i64::try_from(region.size()).unwrap());
    }
    free(&provider, regions[1]);
    // An importer keeps the memory after the exporter has freed it.
    touch(&regions[0], 4);
    let imports = HostImport::new();
    let imported = imports.import(request(&exports[0], 4096, Access::ReadWrite)).unwrap();
    free(&provider, regions[0]);
    drop((provider, exports));
    // SAFETY: the import is mapped until it is released.
    assert_eq!(unsafe { imported.base.as_ptr().unwrap().read_volatile() }, 4);
    // SAFETY: released once.
    unsafe { imports.release(imported) }.unwrap();
}

#[test]
fn read_only_export_cannot_be_mapped_writable() {
    let provider = shared().read_only_export(true).build().unwrap();
    assert!(provider.purge().is_none());
    let region = provider.allocate(layout(4096)).unwrap();
    let exported = export(&provider, &region);
    assert!(exported.isolated && exported.read_only);
    let error = HostImport::new().import(request(&exported, 4096, Access::ReadWrite)).unwrap_err();
    assert!(matches!(error, Error::Untrusted { why } if why.contains("read-only")), "{error}");
    assert!(rustix::io::pwrite(&*fd(&exported), b"x", 0).is_err());
    touch(&region, 5);
    free(&provider, region);
}

fn object(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(&name[1..])
}

fn fresh_name(what: &str) -> String {
    format!("/umf-test-{what}-{}", std::process::id())
}

/// UMF's OS provider unlinks an existing file of the name before it creates its own.
#[test]
fn existing_name_is_an_error_and_stays() {
    let name = fresh_name("taken");
    std::fs::write(object(&name), b"another program's").unwrap();
    let error = HostProvider::builder().named(&*name).build().unwrap_err();
    assert!(matches!(error, Error::Native { native: libc::EEXIST, hint, .. } if !hint.is_empty()), "{error}");
    assert_eq!(std::fs::read(object(&name)).unwrap(), b"another program's");
    std::fs::remove_file(object(&name)).unwrap();
    for bad in ["", "/", "name", "/a/b", "/a\0b", "/..", &"/x".repeat(200), &format!("/{}", "x".repeat(251))]
    {
        let error = HostProvider::builder().named(bad).build().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{bad:?}: {error}");
    }
}

/// With UMF's OS provider the first importer unlinks the name.
#[test]
fn dropping_the_provider_unlinks_its_name() {
    let name = fresh_name("lives");
    let provider = HostProvider::builder().named(&*name).build().unwrap();
    let regions = [4096, 8192].map(|size| provider.allocate(layout(size)).unwrap());
    let mode = std::fs::metadata(object(&name)).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
    for (region, seed) in regions.iter().zip(7..) {
        touch(region, seed);
        let exported = export(&provider, region);
        assert!(!exported.isolated);
        // Any program can open it by name, any number of times.
        for _ in 0..2 {
            let bytes = std::fs::File::open(object(&name)).unwrap();
            let mut buffer = [0];
            rustix::io::pread(&bytes, &mut buffer, exported.offset).unwrap();
            assert_eq!(buffer, [seed]);
        }
        let error = HostImport::new().import(request(&exported, 4096, Access::ReadWrite)).unwrap_err();
        assert!(matches!(error, Error::Untrusted { why } if why.contains("not sealed")), "{error}");
        let trusting = HostImport::new().allow_unsealed(true);
        let imported = trusting.import(request(&exported, 4096, Access::ReadWrite)).unwrap();
        // SAFETY: the import is mapped until it is released, once.
        unsafe {
            assert_eq!(imported.base.as_ptr().unwrap().read_volatile(), seed);
            trusting.release(imported).unwrap();
        }
    }
    in_child(|| {
        // A child that drops the inherited provider does not unlink the parent's name.
        drop(std::sync::Arc::try_unwrap(provider.clone()).map_err(|_| ()));
        // SAFETY: the child does not use its copy again; the parent has its own reference count.
        unsafe {
            let raw = std::sync::Arc::into_raw(provider.clone());
            std::sync::Arc::decrement_strong_count(raw);
            std::ptr::drop_in_place(raw.cast_mut());
        }
    });
    assert!(object(&name).exists());
    drop(provider);
    assert!(!object(&name).exists());
}

#[test]
fn replaced_name_is_not_unlinked() {
    let name = fresh_name("over");
    let provider = HostProvider::builder().named(&*name).build().unwrap();
    std::fs::remove_file(object(&name)).unwrap();
    std::fs::write(object(&name), b"theirs").unwrap();
    drop(provider);
    assert_eq!(std::fs::read(object(&name)).unwrap(), b"theirs");
    std::fs::remove_file(object(&name)).unwrap();
}

#[test]
fn full_named_file_is_out_of_memory() {
    let name = fresh_name("full");
    let provider = HostProvider::builder().named(&*name).arena_size(64 << 10).build().unwrap();
    let region = provider.allocate(layout(48 << 10)).unwrap();
    assert!(matches!(provider.allocate(layout(32 << 10)), Err(Error::OutOfMemory { .. })));
    free(&provider, region);
    let region = provider.allocate(layout(64 << 10)).unwrap();
    free(&provider, region);
}

#[test]
fn contradicting_settings_are_errors() {
    for builder in [
        HostProvider::builder().isolate(true),
        HostProvider::builder().read_only_export(true),
        HostProvider::builder().named("/umf-test-never").isolate(true),
        shared().arena_size(100),
    ] {
        assert!(matches!(builder.build(), Err(Error::InvalidArgument { .. })));
    }
    assert!(!Path::new("/dev/shm/umf-test-never").exists());
}

#[test]
fn full_arena_or_large_region_adds_a_file() {
    let provider = shared().arena_size(1 << 20).build().unwrap();
    let regions: Vec<_> = (0..8).map(|_| provider.allocate(layout(512 << 10)).unwrap()).collect();
    let inodes: std::collections::BTreeSet<_> = regions
        .iter()
        .map(|region| rustix::fs::fstat(&*fd(&export(&provider, region))).unwrap().st_ino)
        .collect();
    assert_eq!(inodes.len(), 4);
    let large = provider.allocate(layout(5 << 20)).unwrap();
    touch(&large, 1);
    free(&provider, large);
    for region in regions {
        free(&provider, region);
    }
}

/// A file beyond `RLIMIT_FSIZE` would raise SIGXFSZ.
#[test]
fn file_size_limit_reduces_the_size_of_files() {
    in_child(|| {
        set_limit(libc::RLIMIT_FSIZE, 1 << 20);
        let provider = shared().build().unwrap();
        let regions: Vec<_> = (0..3).map(|_| provider.allocate(layout(600 << 10)).unwrap()).collect();
        regions.iter().for_each(|region| touch(region, 2));
        assert!(matches!(provider.allocate(layout(2 << 20)), Err(Error::LimitReached { .. })));
        let isolated = shared().isolate(true).build().unwrap();
        assert!(matches!(isolated.allocate(layout(2 << 20)), Err(Error::LimitReached { .. })));
        regions.into_iter().for_each(|region| free(&provider, region));
        set_limit(libc::RLIMIT_FSIZE, 0);
        assert!(shared().build().is_err());
        HostProvider::builder().build().unwrap().allocate(layout(4096)).unwrap();
    });
}

#[test]
fn exhausted_descriptors_are_an_error_with_hint() {
    in_child(|| {
        let provider = shared().isolate(true).build().unwrap();
        set_limit(libc::RLIMIT_NOFILE, 64);
        let mut regions = Vec::new();
        let error = loop {
            match provider.allocate(layout(4096)) {
                Ok(region) => regions.push(region),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("RLIMIT_NOFILE"), "{error}");
        assert!(regions.len() > 16);
        free(&provider, regions.pop().unwrap());
        regions.push(provider.allocate(layout(4096)).unwrap());
        regions.into_iter().for_each(|region| free(&provider, region));
    });
}

/// A full tmpfs is an error with `populate`. Without it, an access raises SIGBUS.
#[test]
fn full_tmpfs_is_an_error_with_populate() {
    if !machine::is_root() {
        println!("umf-skip: host provider: mounting a small /dev/shm needs root");
        return;
    }
    in_child(|| {
        let mount = || {
            // SAFETY: creates a mount namespace for this child.
            (unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0).then_some(())?;
            let none = c"none".as_ptr();
            // SAFETY: all strings are C strings.
            unsafe {
                let private = libc::MS_REC | libc::MS_PRIVATE;
                (libc::mount(none, c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) == 0)
                    .then_some(())?;
                let small = c"size=1m".as_ptr().cast();
                (libc::mount(none, c"/dev/shm".as_ptr(), c"tmpfs".as_ptr(), 0, small) == 0).then_some(())
            }
        };
        if mount().is_none() {
            println!("umf-skip: host provider: mount namespaces are not permitted");
            return;
        }
        let provider = HostProvider::builder().named("/umf-test-small").populate(true).build().unwrap();
        let region = provider.allocate(layout(512 << 10)).unwrap();
        let error = provider.allocate(layout(4 << 20)).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { native: libc::ENOSPC, .. }), "{error}");
        // The failed allocation has released its pages.
        let second = provider.allocate(layout(256 << 10)).unwrap();
        touch(&second, 1);
        free(&provider, second);
        free(&provider, region);
    });
}

#[test]
fn ten_thousand_regions_need_one_descriptor() {
    let provider = shared().build().unwrap();
    let regions: Vec<_> = (0..10_000).map(|_| provider.allocate(layout(4096)).unwrap()).collect();
    let files: std::collections::BTreeSet<_> =
        regions.iter().map(|region| AsRawFd::as_raw_fd(&*fd(&export(&provider, region)))).collect();
    assert_eq!(files.len(), 1);
    regions.into_iter().for_each(|region| free(&provider, region));
    assert_eq!((provider.statistics().count(), provider.statistics().bytes()), (0, 0));
}

#[test]
fn shared_provider_is_frozen_in_a_child() {
    let provider = shared().build().unwrap();
    let region = provider.allocate(layout(1 << 16)).unwrap();
    touch(&region, 4);
    in_child(|| {
        let frozen =
            |result: Result<(), Error>| assert!(matches!(result, Err(Error::Frozen { .. })), "{result:?}");
        frozen(provider.allocate(layout(4096)).map(|_| ()));
        frozen(Provider::export(&*provider).unwrap().export(&region).map(|_| ()));
        // SAFETY: the calls return errors or have no effect.
        unsafe {
            frozen(provider.purge().unwrap().purge_forced(region.base(), region.size()));
            provider.free(region).unwrap();
        }
        // A provider that the child builds works.
        let other = shared().build().unwrap();
        let region = other.allocate(layout(4096)).unwrap();
        touch(&region, 8);
        free(&other, region);
    });
    assert_eq!(byte(&region, 0), 4);
    free(&provider, region);
}

/// Closes all descriptors but the standard streams, and opens a file with content under all numbers
/// up to the highest of `numbers`.
fn files_under(numbers: &[i32]) -> Vec<OwnedFd> {
    // SAFETY: the test closes the descriptors of live objects on purpose.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0, "close_range");
    let file = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC).expect("a memory file");
    assert_eq!(rustix::io::pwrite(&file, &CONTENT, 0), Ok(CONTENT.len()));
    let mut files = vec![file];
    let last = *numbers.iter().max().expect("a number");
    while files.iter().all(|file| file.as_raw_fd() < last) {
        files.push(files[0].try_clone().expect("a descriptor"));
    }
    let is_taken = |number| files.iter().any(|file| file.as_raw_fd() == number);
    assert!(numbers.iter().all(|&number| is_taken(number)), "{numbers:?} are free");
    files
}

static CONTENT: [u8; 1 << 20] = [0x5a; 1 << 20];

/// As after a daemon has closed all descriptors and opened files.
#[test]
fn files_under_reused_fd_numbers_are_left_alone() {
    let name = fresh_name("closed");
    for builder in [
        shared(),
        shared().populate(true),
        shared().isolate(true),
        shared().read_only_export(true),
        HostProvider::builder().named(&*name),
    ] {
        in_child(|| {
            let provider = builder.clone().build().unwrap();
            let regions = [1, 2, 4].map(|times| provider.allocate(layout(times << 16)).unwrap());
            regions.iter().for_each(|region| touch(region, 7));
            let exports = regions.map(|region| export(&provider, &region));
            let numbers = exports.each_ref().map(|export| fd(export).as_raw_fd());
            let files = files_under(&numbers);
            let is_lost = |error: &Error| error.native_code() == Some(libc::EBADF);
            let exported = Provider::export(&*provider).unwrap().export(&regions[1]);
            assert!(exported.as_ref().is_err_and(is_lost), "{exported:?}");
            match provider.allocate(layout(1 << 16)) {
                // An isolated provider creates a new file.
                Ok(region) => free(&provider, region),
                Err(error) => assert!(is_lost(&error), "{error}"),
            }
            assert_eq!(byte(&regions[0], 4096), 7);
            if let Some(purge) = provider.purge() {
                // SAFETY: the content is not needed.
                unsafe { purge.purge_forced(regions[0].base(), regions[0].size()) }.unwrap();
                assert_eq!(byte(&regions[0], 4096), 0);
            }
            for &region in &regions {
                free(&provider, region);
            }
            drop(provider);
            drop(exports);
            for file in files {
                let mut content = vec![0; CONTENT.len()];
                assert_eq!(rustix::io::pread(&file, &mut content[..], 0), Ok(CONTENT.len()));
                assert!(content == CONTENT, "the provider changed the file of the program");
            }
        });
    }
}

#[test]
fn import_checks_range_and_seals() {
    let imports = HostImport::new();
    let file =
        rustix::fs::memfd_create(c"umf-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(file.as_fd(), 1 << 20).unwrap();
    let import = |offset, size, access| {
        imports.import(umf_core::ImportRequest::new(file.try_clone().ok(), offset, size, access))
    };
    assert!(matches!(import(0, 4096, Access::ReadWrite), Err(Error::Untrusted { .. })));
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    for (offset, size) in [
        (0, (1 << 20) + 1),
        (1 << 20, 1),
        (u64::MAX - 4095, 4096),
        (u64::MAX, 1),
        (4096, Layout::MAX_SIZE),
        (4096, usize::MAX),
        (1, 4096),
        (0, 0),
    ] {
        assert!(
            matches!(import(offset, size, Access::ReadWrite), Err(Error::Untrusted { .. })),
            "{offset} {size}"
        );
    }
    // SAFETY: released once, and not used.
    unsafe { imports.release(import(4096, 1, Access::ReadWrite).unwrap()) }.unwrap();
    // SAFETY: as above.
    unsafe { imports.release(import(0, 1 << 20, Access::ReadOnly).unwrap()) }.unwrap();
    // A descriptor of `O_PATH`.
    let path = rustix::fs::open("/dev/shm", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let error =
        imports.import(umf_core::ImportRequest::new(Some(path), 0, 4096, Access::ReadOnly)).unwrap_err();
    assert!(matches!(error, Error::Untrusted { .. }), "{error}");
}
