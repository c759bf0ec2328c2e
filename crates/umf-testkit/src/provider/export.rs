//! Cases about making regions visible to other processes, and opening them.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use super::memory::{allocate, assert_filled, fill, free, is_accessible};
use super::process::{Ended, beside_others, in_child};
use super::{Make, passed_over};
use umf_core::{
    Access, Error, Export, Import, ImportRequest, Imported, Layout, NativeExport, Provider, Region,
};

/// Both abilities, or `None` with a word about it.
fn abilities(provider: &dyn Provider) -> Option<(&dyn Export, &dyn Import)> {
    let both = provider.export().zip(provider.import());
    if both.is_none() {
        passed_over(provider, "it cannot export and import");
    }
    both
}

/// The request that the handle of an export becomes in another process.
pub(super) fn request(export: &NativeExport, size: usize, access: Access) -> ImportRequest {
    let fd = export.fd.as_ref().map(|fd| fd.try_clone().expect("a duplicate of the descriptor"));
    let mut request = ImportRequest::new(fd, export.offset, size, access);
    let native = export.native.as_slice();
    request.native[..native.len()].copy_from_slice(native);
    request.native_len = native.len();
    request.allocation_id = export.allocation_id;
    request
}

/// The most that importers of an export can ask for.
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
    // SAFETY: the cases release once, what they do not use any more.
    if let Err(error) = unsafe { ability.release(imported) } {
        panic!("releasing {imported:?}: {error}");
    }
}

/// What is written in the region is seen in the import and the other way round, at every alignment and beside
/// other regions.
pub fn exports_open_at_the_right_bytes(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some((exports, imports)) = abilities(&*provider) else { return };
    let page = provider.page_size();
    let mut live = Vec::new();
    for (number, align) in [1, page, page << 1, 1 << 16, 1 << 21, page, 1 << 21].into_iter().enumerate() {
        let size = page * (1 + number % 3);
        let Ok(region) = provider.allocate(Layout::new(size, align).expect("a valid layout")) else {
            passed_over(&*provider, "an alignment that it does not have");
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
        // A second export and import of the same region is as good as the first.
        let second = export(exports, region);
        let again = import(imports, request(&second, region.size(), access_of(&second)));
        release(imports, imported);
        exports.unexport(region, exported).expect("taking back an export");
        if again.host_accessible {
            fill(region.base(), region.size(), 7);
            assert_filled(again.base, region.size(), 7);
        }
        release(imports, again);
        exports.unexport(region, second).expect("taking back an export");
    }
    for (region, _) in live {
        free(&*provider, region);
        assert!(exports.export(&region).is_err(), "a region that was freed was exported");
    }
    let page = u64::try_from(page).expect("a page size");
    let foreign = Region::new(umf_core::Address::new(1 << 20).expect("a valid address"), 1 << 20);
    assert!(exports.export(&foreign).is_err(), "what is no region was exported, pages of {page} bytes");
}

/// A read-only import reads, and writing to it ends the process that tries. An export that is read-only
/// cannot be imported otherwise.
pub fn read_only_imports_cannot_be_written(make: Make<'_>) {
    let _beside = beside_others();
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
            assert!(imported.read_only, "a read-only import says that it is not");
            let target = imported.base.as_ptr().expect("host-accessible memory has pointers");
            let ended = in_child(|| {
                // SAFETY: none: this is what must end the child.
                unsafe { target.write_volatile(1) };
                0
            });
            assert_eq!(ended, Ended::Signal(libc::SIGSEGV), "writing to a read-only import");
            assert_filled(region.base(), region.size(), 61);
            release(imports, imported);
        }
        Ok(imported) => release(imports, imported),
        Err(Error::NotSupported { .. }) => passed_over(&*provider, "it has no read-only imports"),
        Err(error) => panic!("importing read-only: {error}"),
    }
    exports.unexport(&region, exported).expect("taking back an export");
    free(&*provider, region);
}

/// Freeing the region does not take the memory from under an importer, which may read what it likes but not
/// fault.
pub fn imports_outlive_the_region(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some((exports, imports)) = abilities(&*provider) else { return };
    let region = allocate(&*provider, 3 * provider.page_size(), 1);
    let exported = export(exports, &region);
    let imported = import(imports, request(&exported, region.size(), Access::ReadOnly));
    exports.unexport(&region, exported).expect("taking back an export");
    free(&*provider, region);
    drop(provider);
    if imported.host_accessible {
        let base = imported.base.as_ptr().expect("host-accessible memory has pointers");
        let ended = in_child(|| {
            for place in (0..region.size()).step_by(512) {
                // SAFETY: an import is memory until it is released.
                unsafe { base.add(place).read_volatile() };
            }
            0
        });
        assert_eq!(ended, Ended::Exit(0), "reading an import whose region was freed");
    }
    let provider = make();
    release(provider.import().expect("as before"), imported);
}

/// What is no export is refused, whatever is wrong with it.
pub fn junk_is_not_imported(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some((exports, imports)) = abilities(&*provider) else { return };
    let region = allocate(&*provider, 2 * provider.page_size(), 1);
    let exported = export(exports, &region);
    let Some(data) = exported.fd.clone() else {
        passed_over(&*provider, "its exports have no descriptor");
        exports.unexport(&region, exported).expect("taking back an export");
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
        passed_over(&*provider, "it opens files that can shrink: its own do");
    } else {
        refused("a file that can shrink", &|request| request.fd = Some(unsealed(request)));
    }
    // After all that, the real one is still opened.
    let imported = import(imports, request(&exported, region.size(), access_of(&exported)));
    release(imports, imported);
    drop(data);
    exports.unexport(&region, exported).expect("taking back an export");
    free(&*provider, region);
}

/// A memfd that is large enough, and that anyone may truncate.
fn unsealed(request: &ImportRequest) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"umf-test", flags).expect("a memfd");
    rustix::fs::ftruncate(file.as_fd(), request.offset + request.size as u64).expect("sized");
    let mut file = File::from(file);
    file.write_all(b"junk").expect("written");
    OwnedFd::from(file)
}
