//! Buffers: their sources, names, CPU accesses and fences, and the texts of errors.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod machine;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use machine::{lacks, lacks_huge_pages, skip};
use rustix::fs::{MemfdFlags, SealFlags};
use umf_core::{Access, Address, CpuAccess, Error, Import, ImportRequest, Layout, Provider, Region};
use umf_provider_dma_buf::{DmaBuf, DmaBufImport, DmaBufProvider, FilePart, Heap, Udmabuf, cpu_access};

const PAGE: usize = 4096;

/// Returns a provider over each source of this machine, with its name.
fn providers() -> Vec<(&'static str, Arc<DmaBufProvider>)> {
    let made = [("udmabuf", DmaBufProvider::udmabuf()), ("system heap", DmaBufProvider::heap("system"))];
    let mut found = Vec::new();
    for (name, builder) in made {
        match builder {
            Ok(builder) => found.push((name, builder.name(name).build().unwrap())),
            Err(error) => skip(&format!("buffers of {name}"), &error.to_string()),
        }
    }
    found
}

fn allocate(provider: &DmaBufProvider, size: usize) -> Region {
    provider.allocate(Layout::new(size, 1).unwrap()).unwrap()
}

fn free(provider: &DmaBufProvider, region: Region) {
    // SAFETY: the tests do not use regions after freeing them.
    unsafe { provider.free(region) }.unwrap();
}

fn fd(provider: &DmaBufProvider, region: &Region) -> Arc<OwnedFd> {
    Provider::export(provider).unwrap().export(region).unwrap().fd.unwrap()
}

fn touch(region: &Region, access: Access) -> umf_core::Result<CpuAccess<'static>> {
    // SAFETY: the tests end the access before they free the region, and have no references into it.
    unsafe { cpu_access(region.base(), region.size(), access) }
}

fn memfd(size: u64, seals: SealFlags) -> OwnedFd {
    let file =
        rustix::fs::memfd_create(c"umf-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn from_fd_rejects_other_files() {
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for fd in [pipe, OwnedFd::from(null), memfd(PAGE as u64, SealFlags::SHRINK)] {
        let error = DmaBuf::from_fd(fd.try_clone().unwrap()).unwrap_err();
        assert!(
            matches!(error, Error::Untrusted { .. }) && error.to_string().contains("not a dma-buf"),
            "{error}"
        );
        assert!(DmaBufProvider::over(fd.try_clone().unwrap()).is_err());
        let request = ImportRequest::new(Some(fd), 0, PAGE, Access::ReadWrite);
        assert!(matches!(DmaBufImport::new().import(request), Err(Error::Untrusted { .. })));
    }
}

#[test]
fn missing_device_is_an_error_with_hint() {
    let error = Heap::open("no-such-heap").unwrap_err().to_string();
    assert!(error.contains("/dev/dma_heap") && error.contains("os error 2"), "{error}");
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert!(matches!(Heap::open(name), Err(Error::InvalidArgument { .. })), "{name:?}");
    }
    if let Err(error) = Udmabuf::open() {
        let text = error.to_string();
        assert!(text.contains("/dev/udmabuf"), "{text}");
        assert!(!matches!(error, Error::NotSupported { .. }) || text.contains("modprobe udmabuf"), "{text}");
    }
    assert_eq!(Udmabuf::report().works.is_ok(), Udmabuf::open().is_ok());
}

#[test]
fn cpu_access_rejects_foreign_memory() {
    let here = 1_u8;
    // SAFETY: an error is expected.
    let refused = unsafe { cpu_access(Address::from_ptr(&raw const here), 1, Access::ReadOnly) };
    assert!(matches!(refused, Err(Error::ForeignAddress { .. })));
}

#[test]
fn cpu_access_is_bounded_by_its_range() {
    for (name, provider) in providers() {
        let region = allocate(&provider, 3 * PAGE);
        let mut memory = touch(&region, Access::ReadWrite).unwrap();
        memory.write(PAGE - 2, b"over a page's end").unwrap();
        assert!(memory.write(region.size() - 1, b"ab").is_err());
        assert!(memory.write(usize::MAX, b"a").is_err());
        memory.end().unwrap();
        let mut memory = touch(&region, Access::ReadOnly).unwrap();
        let mut text = [0; 17];
        memory.read(PAGE - 2, &mut text).unwrap();
        assert_eq!(&text, b"over a page's end", "{name}");
        assert!(memory.write(0, b"a").is_err(), "an access for reading");
        assert!(memory.read(region.size(), &mut text).is_err());
        drop(memory);
        // An access to a part of a region; one beyond the region is an error.
        let inside = region.base().checked_add(PAGE as u64).unwrap();
        // SAFETY: as in `touch`.
        unsafe {
            assert!(cpu_access(inside, PAGE, Access::ReadWrite).is_ok());
            assert!(matches!(
                cpu_access(inside, 3 * PAGE, Access::ReadWrite),
                Err(Error::InvalidArgument { .. })
            ));
        }
        free(&provider, region);
        assert!(matches!(touch(&region, Access::ReadOnly), Err(Error::ForeignAddress { .. })));
    }
}

#[test]
fn read_only_import_rejects_write_access() {
    for (name, provider) in providers() {
        let region = allocate(&provider, 2 * PAGE);
        let import = |access| {
            let fd = fd(&provider, &region).try_clone().unwrap();
            DmaBufImport::new().import(ImportRequest::new(Some(fd), PAGE as u64, PAGE, access)).unwrap()
        };
        let (plain, read_only) = (import(Access::ReadWrite), import(Access::ReadOnly));
        // SAFETY: the imports are released below, and there are no references into them.
        unsafe {
            let mut memory = cpu_access(plain.base, PAGE, Access::ReadWrite).unwrap();
            memory.write(5, b"second page").unwrap();
            memory.end().unwrap();
            let refused = cpu_access(read_only.base, PAGE, Access::ReadWrite);
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{name}");
            let memory = cpu_access(read_only.base, PAGE, Access::ReadOnly).unwrap();
            let mut text = [0; 11];
            memory.read(5, &mut text).unwrap();
            assert_eq!(&text, b"second page", "{name}");
            memory.end().unwrap();
            DmaBufImport::new().release(plain).unwrap();
            DmaBufImport::new().release(read_only).unwrap();
            assert!(DmaBufImport::new().release(plain).is_err(), "released twice");
        }
        free(&provider, region);
    }
}

#[test]
fn buffer_names_have_process_and_provider() {
    for (name, provider) in providers() {
        let region = allocate(&provider, PAGE);
        let fd = fd(&provider, &region);
        let number = std::os::fd::AsRawFd::as_raw_fd(&*fd);
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
        let owner = format!("umf {} {name}", std::process::id());
        assert!(info.contains(&format!("name:\t{owner}")), "{info}");
        if let Ok(all) = std::fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo") {
            assert!(all.contains(&owner), "{owner} is not in {all}");
        } else {
            skip("buffers in bufinfo", "no debugfs that this process may read");
        }
        let buffer = DmaBuf::from_fd(fd.try_clone().unwrap()).unwrap();
        buffer.set_name("a name that is much too long for a buffer\n").unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
        assert!(info.contains("name:\ta name that is much too long fo\n"), "{info}");
        free(&provider, region);
    }
}

#[test]
fn sync_files_are_exported_and_imported() {
    for (name, provider) in providers() {
        let region = allocate(&provider, PAGE);
        let buffer = DmaBuf::from_fd(fd(&provider, &region).try_clone().unwrap()).unwrap();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            match buffer.export_sync_file(access) {
                Ok(file) => {
                    // No device uses the buffer, so the sync file is signalled.
                    let mut poll = [rustix::event::PollFd::new(&file, rustix::event::PollFlags::IN)];
                    assert_eq!(rustix::event::poll(&mut poll, None).unwrap(), 1, "{name}");
                    buffer.import_sync_file(file.as_fd(), access).unwrap();
                }
                Err(error @ Error::NotSupported { .. }) => skip("sync files", &error.to_string()),
                Err(error) => panic!("{name}: {error}"),
            }
        }
        let other = memfd(1, SealFlags::empty());
        let refused = buffer.import_sync_file(other.as_fd(), Access::ReadOnly);
        assert!(
            matches!(refused, Err(Error::InvalidArgument { .. } | Error::NotSupported { .. })),
            "{refused:?}"
        );
        free(&provider, region);
    }
}

fn part(file: BorrowedFd<'_>, pages: std::ops::Range<u64>) -> FilePart<'_> {
    FilePart { file, range: pages.start * PAGE as u64..pages.end * PAGE as u64 }
}

#[test]
fn udmabuf_joins_parts_of_sealed_files() {
    let device = match Udmabuf::open() {
        Ok(device) => device,
        Err(error) => return skip("udmabufs over files", &error.to_string()),
    };
    let page = PAGE as u64;
    let (one, two) = (memfd(4 * page, SealFlags::SHRINK), memfd(2 * page, SealFlags::SHRINK));
    rustix::io::pwrite(&one, b"third page of one", 2 * page).unwrap();
    rustix::io::pwrite(&two, b"first page of two", 0).unwrap();
    let parts = [part(two.as_fd(), 0..1), part(one.as_fd(), 2..4), part(one.as_fd(), 0..1)];
    let buffer = device.over(&parts).unwrap();
    assert_eq!(buffer.size(), 4 * page);
    // The provider keeps the buffer after the files and the other descriptor were closed.
    let fd = buffer.as_fd().try_clone_to_owned().unwrap();
    drop((one, buffer));
    let provider = DmaBufProvider::over(fd).unwrap().build().unwrap();
    let whole = allocate(&provider, 4 * PAGE);
    let mut memory = touch(&whole, Access::ReadWrite).unwrap();
    for (offset, expected) in [(0, b"first page of two"), (PAGE, b"third page of one")] {
        let mut text = [0; 17];
        memory.read(offset, &mut text).unwrap();
        assert_eq!(&text, expected);
    }
    // A write to the buffer changes the file.
    memory.write(0, b"FIRST").unwrap();
    memory.end().unwrap();
    let mut text = [0; 10];
    rustix::io::pread(&two, &mut text, 0).unwrap();
    assert_eq!(&text, b"FIRST page");
    // The whole buffer is allocated.
    let full = provider.allocate(Layout::new(1, 1).unwrap()).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { .. }), "{full}");
    free(&provider, whole);
    allocate(&provider, PAGE);

    let can_shrink = memfd(page, SealFlags::empty());
    let constant = memfd(page, SealFlags::SHRINK | SealFlags::WRITE);
    let null = std::fs::File::open("/dev/null").unwrap();
    for (parts, why) in [
        (vec![], "at least one"),
        (vec![part(two.as_fd(), 1..1)], "whole pages"),
        (vec![FilePart { file: two.as_fd(), range: 1..4097 }], "whole pages"),
        (vec![part(can_shrink.as_fd(), 0..1)], "F_SEAL_SHRINK"),
        (vec![part(constant.as_fd(), 0..1)], "F_SEAL_WRITE"),
        (vec![part(null.as_fd(), 0..1)], "memory files"),
        (vec![part(two.as_fd(), 1..3)], "lie in their files"),
    ] {
        let error = device.over(&parts).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn udmabuf_limits_are_errors_with_hint() {
    let device = match Udmabuf::open() {
        Ok(device) => device,
        Err(error) => return skip("limits of udmabuf", &error.to_string()),
    };
    let (size, parts) = (Udmabuf::size_limit().unwrap(), Udmabuf::parts_limit().unwrap());
    let provider = DmaBufProvider::udmabuf().unwrap().build().unwrap();
    let too_much = usize::try_from(size).unwrap() + PAGE;
    let error = provider.allocate(Layout::new(too_much, 1).unwrap()).unwrap_err();
    assert!(matches!(error, Error::LimitReached { limit, .. } if limit == size), "{error}");
    assert!(error.to_string().contains("size_limit_mb"), "{error}");
    let file = memfd(PAGE as u64, SealFlags::SHRINK);
    let part = FilePart { file: file.as_fd(), range: 0..PAGE as u64 };
    let many = vec![part; usize::try_from(parts).unwrap()];
    assert_eq!(device.over(&many).unwrap().size(), parts * PAGE as u64);
    let error =
        device.over(&[many, vec![FilePart { file: file.as_fd(), range: 0..4096 }]].concat()).unwrap_err();
    assert!(error.to_string().contains("list_limit"), "{error}");
}

#[test]
fn huge_pages_are_used_or_an_error_with_hint() {
    let builder = match DmaBufProvider::udmabuf() {
        Ok(builder) => builder,
        Err(error) => return skip("huge pages of udmabuf", &error.to_string()),
    };
    assert!(DmaBufProvider::udmabuf().unwrap().huge_page(3 << 20).build().is_err());
    if let Ok(heap) = DmaBufProvider::heap("system") {
        assert!(heap.huge_page(2 << 20).build().is_err(), "the driver chooses");
    }
    let provider = builder.huge_page(2 << 20).build().unwrap();
    if let Some(why) = lacks_huge_pages(4) {
        let error = provider.allocate(Layout::new(64 << 20, 1).unwrap()).unwrap_err().to_string();
        assert!(error.contains("nr_hugepages"), "{error}");
        return skip("huge pages of udmabuf", &why);
    }
    let region = allocate(&provider, 1);
    assert_eq!((region.size(), region.base().is_aligned_to(2 << 20)), (2 << 20, true));
    let mut memory = touch(&region, Access::ReadWrite).unwrap();
    memory.write((2 << 20) - 4, b"last").unwrap();
    memory.end().unwrap();
    free(&provider, region);
}

#[test]
fn allocating_more_than_available_is_an_error() {
    for (name, provider) in providers() {
        // Some exporters would allocate pages until the OOM killer runs.
        let error = provider.allocate(Layout::new(1 << 40, 1).unwrap()).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. }), "{name}: {error}");
        assert_eq!(lacks(provider.allocate(Layout::new(1, 1).unwrap())), None, "{name}");
    }
}
