//! Cases about bracketing CPU access to memory.

use super::export::request;
use super::memory::{allocate, assert_filled, fill, free, is_accessible};
use super::process::run_shared;
use super::{MakeProvider, skip};
use umf_core::{Access, Address, Error};

/// CPU access can be bracketed for each part of a region and of an import, with overlapping
/// brackets. Foreign addresses, and writes to read-only imports, are refused.
pub fn cpu_access_is_bracketed(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some(ability) = provider.host_access() else {
        return skip(&*provider, "CPU access needs no brackets");
    };
    assert!(is_accessible(&*provider), "memory that the CPU cannot access has brackets for CPU access");
    let page = provider.page_size();
    let region = allocate(&*provider, 2 * page, 1);
    let (base, size) = (region.base(), region.size());
    let second = base.checked_add(page as u64).expect("inside of the region");
    let last = base.checked_add(size as u64 - 1).expect("inside of the region");
    ability.begin(base, size, Access::ReadWrite).expect("beginning to write a region");
    fill(base, size, 31);
    // Nested and adjacent brackets.
    ability.begin(second, page, Access::ReadOnly).expect("beginning to read a part");
    ability.begin(last, 1, Access::ReadWrite).expect("beginning to write one byte");
    ability.end(base, size, Access::ReadWrite).expect("ending");
    assert_filled(base, size, 31);
    ability.end(second, page, Access::ReadOnly).expect("ending");
    ability.end(last, 1, Access::ReadWrite).expect("ending");
    let here = 0_u8;
    let refused = ability.begin(Address::from_ptr(&raw const here), 1, Access::ReadOnly);
    assert!(matches!(refused, Err(Error::ForeignAddress { .. })), "of what is not its own: {refused:?}");
    if let Some((exports, imports)) = provider.export().zip(provider.import()) {
        let ability = imports.host_access().expect("imports have the ability of the provider");
        let exported = exports.export(&region).expect("exporting");
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let imported = imports.import(request(&exported, size, access)).expect("importing");
            ability.begin(imported.base, size, Access::ReadOnly).expect("beginning to read an import");
            assert_filled(imported.base, size, 31);
            ability.end(imported.base, size, Access::ReadOnly).expect("ending");
            let writes = ability.begin(imported.base, size, Access::ReadWrite);
            assert_eq!(writes.is_ok(), access == Access::ReadWrite, "{access:?}: {writes:?}");
            if writes.is_ok() {
                fill(imported.base, size, 32);
                ability.end(imported.base, size, Access::ReadWrite).expect("ending");
                assert_filled(base, size, 32);
            }
            // SAFETY: released once, and not used any more.
            unsafe { imports.release(imported) }.expect("releasing");
        }
        exports.unexport(&region, exported).expect("taking back an export");
    }
    free(&*provider, region);
}
