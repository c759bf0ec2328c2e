//! Cases about exporting regions to other processes, and importing them.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use super::process::{ExitReason, in_child, run_shared};
use super::{MakeProvider, allocate, assert_filled, fill, free, is_accessible, skip};
use umf_core::{
    Access, Error, Export, Import, ImportRequest, Imported, Layout, NativeExport, Provider, Region,
};

/// Returns both abilities; prints a line and returns `None` if one is missing.
fn abilities(provider: &dyn Provider) -> Option<(&dyn Export, &dyn Import)> {
    let both = provider.export().zip(provider.import());
    if both.is_none() {
        skip(provider, "it cannot export and import");
    }
    both
}

/// Returns the request that an export becomes in the importing process.
pub(super) fn request(export: &NativeExport, size: usize, access: Access) -> ImportRequest {
    let fd = export.fd.as_ref().map(|fd| fd.try_clone().expect("a duplicate of the descriptor"));
    let mut request = ImportRequest::new(fd, export.offset, size, access);
    let native = export.native.as_slice();
    request.native[..native.len()].copy_from_slice(native);
    request.native_len = native.len();
    request.allocation_id = export.allocation_id;
    request
}

/// Returns the widest access that an import of an export can have.
pub(super) fn access_of(export: &NativeExport) -> Access {
    if export.read_only { Access::ReadOnly } else { Access::ReadWrite }
}

#[track_caller]
fn export(ability: &dyn Export, region: &Region) -> NativeExport {
    ability.export(region).unwrap_or_else(|error| panic!("exporting {region:?}: {error}"))
}

#[track_caller]
fn import(ability: &dyn Import, request: ImportRequest) -> Imported {
    ability.import(request).unwrap_or_else(|error| panic!("importing: {error}"))
}

#[track_caller]
fn release(ability: &dyn Import, imported: Imported) {
    // SAFETY: each import is released once, and is not used any more.
    if let Err(error) = unsafe { ability.release(imported) } {
        panic!("releasing {imported:?}: {error}");
    }
}

/// Data written to a region is visible in its import and vice versa, at each alignment and beside
/// other regions.
pub fn import_maps_the_exported_bytes(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some((exports, imports)) = abilities(&*provider) else { return };
    let page = provider.page_size();
    let mut live = Vec::new();
    for (number, align) in [1, page, page << 1, 1 << 16, 1 << 21, page, 1 << 21].into_iter().enumerate() {
        let size = page * (1 + number % 3);
        let Ok(region) = provider.allocate(Layout::new(size, align).expect("a valid layout")) else {
            skip(&*provider, "it does not support an alignment");
            continue;
        };
        live.push((region, 50 + number as u8));
    }
    if is_accessible(&*provider) {
        for (region, seed) in &live {
            fill(region.base(), region.size(), *seed);
        }
    }
    for (region, seed) in &live {
        let exported = export(exports, region);
        let imported = import(imports, request(&exported, region.size(), access_of(&exported)));
        assert!(imported.size >= region.size());
        assert_eq!(imported.host_accessible, is_accessible(&*provider));
        if imported.host_accessible {
            assert_filled(imported.base, region.size(), *seed);
            fill(region.base(), region.size(), seed + 100);
            assert_filled(imported.base, region.size(), seed + 100);
            if access_of(&exported) == Access::ReadWrite {
                fill(imported.base, region.size(), *seed);
                assert_filled(region.base(), region.size(), *seed);
            }
        }
        // A second export and import of the region works as the first.
        let second = export(exports, region);
        let again = import(imports, request(&second, region.size(), access_of(&second)));
        release(imports, imported);
        exports.unexport(region, exported).expect("ending an export");
        if again.host_accessible {
            fill(region.base(), region.size(), 7);
            assert_filled(again.base, region.size(), 7);
        }
        release(imports, again);
        exports.unexport(region, second).expect("ending an export");
    }
    for (region, _) in live {
        free(&*provider, region);
        assert!(exports.export(&region).is_err(), "a region that was freed was exported");
    }
    let page = u64::try_from(page).expect("a page size");
    let foreign = Region::new(umf_core::Address::new(1 << 20).expect("a valid address"), 1 << 20);
    assert!(exports.export(&foreign).is_err(), "an unknown region was exported, pages of {page} bytes");
}

/// A read-only import is readable, and a write to it ends the process. A read-only export cannot be
/// imported for writing.
pub fn read_only_imports_cannot_be_written(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some((exports, imports)) = abilities(&*provider) else { return };
    let region = allocate(&*provider, 2 * provider.page_size(), 1);
    let exported = export(exports, &region);
    if exported.read_only {
        let result = imports.import(request(&exported, region.size(), Access::ReadWrite));
        assert!(result.is_err(), "a read-only export was imported for writing");
    }
    match imports.import(request(&exported, region.size(), Access::ReadOnly)) {
        Ok(imported) if imported.host_accessible => {
            fill(region.base(), region.size(), 61);
            assert_filled(imported.base, region.size(), 61);
            assert!(imported.read_only, "a read-only import reports that it is writable");
            let target = imported.base.as_ptr().expect("host-accessible memory has pointers");
            let ended = in_child(|| {
                // SAFETY: the write faults, and the fault ends only the child.
                unsafe { target.write_volatile(1) };
                0
            });
            assert_eq!(ended, ExitReason::Signal(libc::SIGSEGV), "writing to a read-only import");
            assert_filled(region.base(), region.size(), 61);
            release(imports, imported);
        }
        Ok(imported) => release(imports, imported),
        Err(Error::NotSupported { .. }) => skip(&*provider, "it has no read-only imports"),
        Err(error) => panic!("importing read-only: {error}"),
    }
    exports.unexport(&region, exported).expect("ending an export");
    free(&*provider, region);
}

/// An import stays mapped after the region is freed. Its contents are unspecified.
pub fn imports_outlive_their_region(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some((exports, imports)) = abilities(&*provider) else { return };
    let region = allocate(&*provider, 3 * provider.page_size(), 1);
    let exported = export(exports, &region);
    let imported = import(imports, request(&exported, region.size(), Access::ReadOnly));
    exports.unexport(&region, exported).expect("ending an export");
    free(&*provider, region);
    drop(provider);
    if imported.host_accessible {
        let base = imported.base.as_ptr().expect("host-accessible memory has pointers");
        let ended = in_child(|| {
            for place in (0..region.size()).step_by(512) {
                // SAFETY: an import stays mapped until it is released.
                unsafe { base.add(place).read_volatile() };
            }
            0
        });
        assert_eq!(ended, ExitReason::Exit(0), "reading an import whose region was freed");
    }
    let provider = make();
    release(provider.import().expect("as before"), imported);
}

/// Invalid import requests are refused.
pub fn invalid_import_requests_are_refused(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some((exports, imports)) = abilities(&*provider) else { return };
    let region = allocate(&*provider, 2 * provider.page_size(), 1);
    let exported = export(exports, &region);
    let Some(data) = exported.fd.clone() else {
        skip(&*provider, "its exports have no descriptor");
        exports.unexport(&region, exported).expect("ending an export");
        return free(&*provider, region);
    };
    let refused = |what: &str, change: &dyn Fn(&mut ImportRequest)| {
        let mut request = request(&exported, region.size(), access_of(&exported));
        change(&mut request);
        if let Ok(imported) = imports.import(request) {
            panic!("imported {what}: {imported:?}");
        }
    };
    let file_size = rustix::fs::fstat(&*data).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    refused("without a descriptor", &|request| request.fd = None);
    refused("from the middle of a page", &|request| request.offset += 1);
    refused("at the last offset there is", &|request| request.offset = u64::MAX - 4095);
    refused("more than there is", &|request| request.size = Layout::MAX_SIZE);
    refused("the largest size there is", &|request| request.size = usize::MAX);
    refused("nothing", &|request| request.size = 0);
    if file_size > 0 {
        refused("from the end of the file", &|request| request.offset = file_size);
        refused("past the end of the file", &|request| {
            request.size = usize::try_from(file_size - request.offset).expect("a size") + 1;
        });
    }
    refused("a pipe", &|request| request.fd = rustix::pipe::pipe().ok().map(|(read, _)| read));
    refused("a socket", &|request| {
        request.fd = std::os::unix::net::UnixStream::pair().ok().map(|(one, _)| OwnedFd::from(one));
    });
    for path in ["/dev/null", "/dev/zero", "/proc/self/maps", "/proc/self"] {
        refused(path, &|request| request.fd = File::open(path).ok().map(OwnedFd::from));
    }
    let can_shrink = |fd: &OwnedFd| {
        rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| !seals.contains(rustix::fs::SealFlags::SHRINK))
    };
    if can_shrink(&data) {
        skip(&*provider, "its own files can shrink, so it accepts such files");
    } else {
        refused("a file that can shrink", &|request| request.fd = Some(unsealed(request)));
    }
    // The valid export can still be imported.
    let imported = import(imports, request(&exported, region.size(), access_of(&exported)));
    release(imports, imported);
    drop(data);
    exports.unexport(&region, exported).expect("ending an export");
    free(&*provider, region);
}

/// Creates a memfd that is large enough and can be truncated.
fn unsealed(request: &ImportRequest) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"umf-test", flags).expect("a memfd");
    rustix::fs::ftruncate(file.as_fd(), request.offset + request.size as u64).expect("sized");
    let mut file = File::from(file);
    file.write_all(b"junk").expect("written");
    OwnedFd::from(file)
}
