//! Cases about access to memory: brackets of CPU access, and copies by the device.

use super::export::{access_of, request};
use super::process::{run_exclusive, run_shared};
use super::{MakeProvider, allocate, assert_filled, fill, free, is_accessible, skip};
use umf_core::{Access, Address, Error, Layout, Provider, Region, Transfer};

/// CPU access can be bracketed for each part of a region and of an import, with overlapping
/// brackets. Foreign addresses, and writes to read-only imports, are refused.
pub fn cpu_access_is_bracketed(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some(ability) = provider.host_access() else {
        return skip(&*provider, "CPU access needs no brackets");
    };
    assert!(is_accessible(&*provider), "device memory has brackets for CPU access");
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
    assert!(
        matches!(refused, Err(Error::ForeignAddress { .. })),
        "beginning to access foreign memory: {refused:?}"
    );
    if let Some((exports, imports)) = provider.export().zip(provider.import()) {
        let ability = imports.host_access().expect("imports have the ability of the provider");
        let exported = exports.export(&region).expect("exporting");
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let imported = imports.import(request(&exported, size, access)).expect("importing");
            ability.begin(imported.base, size, Access::ReadOnly).expect("beginning to read an import");
            assert_filled(imported.base, size, 31);
            ability.end(imported.base, size, Access::ReadOnly).expect("ending");
            let begun = ability.begin(imported.base, size, Access::ReadWrite);
            assert_eq!(begun.is_ok(), access == Access::ReadWrite, "{access:?}: {begun:?}");
            if begun.is_ok() {
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

/// Returns the ability. Prints a line if neither a device nor the CPU can access the memory.
fn ability(provider: &dyn Provider) -> Option<&dyn Transfer> {
    let transfer = provider.transfer();
    if transfer.is_none() && !is_accessible(provider) {
        skip(provider, "it has no copies, and the CPU cannot access its memory");
    }
    transfer
}

#[track_caller]
fn offset_by(base: Address, bytes: usize) -> Address {
    base.checked_add(bytes as u64).expect("inside of the region")
}

fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|place| (place / 7) as u8 ^ (place >> 9) as u8 ^ seed).collect()
}

#[track_caller]
fn put(transfer: &dyn Transfer, to: Address, bytes: &[u8]) {
    // SAFETY: the range was allocated or imported by the case, and no reference points into it.
    if let Err(error) = unsafe { transfer.write(to, bytes) } {
        panic!("copying {} bytes to {to}: {error}", bytes.len());
    }
}

#[track_caller]
fn get(transfer: &dyn Transfer, from: Address, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    // SAFETY: the range was allocated or imported by the case, and no reference points into it.
    if let Err(error) = unsafe { transfer.read(from, &mut bytes) } {
        panic!("copying {size} bytes from {from}: {error}");
    }
    bytes
}

/// Copies and fills change the named bytes only. A range outside of one live region is refused.
pub fn copies_change_named_bytes_only(make: MakeProvider<'_>) {
    let _guard = run_exclusive();
    let provider = make();
    let Some(transfer) = ability(&*provider) else { return };
    let page = provider.page_size();
    let (one, other) = (allocate(&*provider, 3 * page, 1), allocate(&*provider, 2 * page, 1));
    let size = one.size();
    let mut expected = pattern(size, 1);
    put(transfer, one.base(), &expected);
    put(transfer, other.base(), &pattern(other.size(), 2));
    for (place, length) in [(0, 1), (7, 1000), (page - 3, 6), (size - 1, 1), (5, 0)] {
        let bytes = pattern(length, 3);
        put(transfer, offset_by(one.base(), place), &bytes);
        expected[place..place + length].copy_from_slice(&bytes);
    }
    // SAFETY: memory of this test without references into it; the same holds below.
    unsafe { transfer.fill(offset_by(one.base(), page + 1), page - 2, 0xA7) }.expect("filling");
    expected[page + 1..2 * page - 1].fill(0xA7);
    assert!(get(transfer, one.base(), size) == expected, "a region does not have the copied bytes");
    assert!(get(transfer, other.base(), other.size()) == pattern(other.size(), 2), "a neighbour was changed");
    // SAFETY: memory of this test without references into it.
    unsafe { transfer.copy(offset_by(one.base(), page + 5), offset_by(other.base(), 9), page) }
        .expect("copying");
    let copied = get(transfer, offset_by(other.base(), 9), page);
    assert!(copied == expected[page + 5..2 * page + 5], "a copy between regions has wrong bytes");
    refuses(transfer, one.base(), size + 1, "more than the region");
    refuses(transfer, offset_by(one.base(), size - 1), 2, "past the end of a region");
    refuses(transfer, Address::new(page).expect("an address"), 1, "memory that was never allocated");
    refuses(transfer, one.base(), usize::MAX, "everything");
    let last = one.base();
    free(&*provider, one);
    refuses(transfer, last, 1, "a region that was freed");
    free(&*provider, other);
}

#[track_caller]
fn refuses(transfer: &dyn Transfer, at: Address, size: usize, what: &str) {
    // A size without a buffer to match is only tested with a fill.
    if size < 1 << 26 {
        let mut buffer = vec![0; size];
        // SAFETY: the call fails and accesses nothing.
        assert!(unsafe { transfer.read(at, &mut buffer) }.is_err(), "{what} was read");
        // SAFETY: the call fails and accesses nothing.
        assert!(unsafe { transfer.write(at, &buffer) }.is_err(), "{what} was written");
    }
    // SAFETY: the call fails and accesses nothing.
    assert!(unsafe { transfer.fill(at, size, 1) }.is_err(), "{what} was filled");
}

/// A copy into a region is visible in its import, and vice versa, at each alignment.
pub fn copies_are_visible_through_imports(make: MakeProvider<'_>) {
    let _guard = run_exclusive();
    let provider = make();
    let Some(transfer) = ability(&*provider) else { return };
    let Some((exports, imports)) = provider.export().zip(provider.import()) else { return };
    let by_importer = imports.transfer().expect("a provider that copies regions also copies imports");
    let page = provider.page_size();
    let live: Vec<Region> = [(1, 1), (2, page << 1), (3, 1)]
        .into_iter()
        .filter_map(|(pages, align)| Layout::new(pages * page, align).ok())
        .filter_map(|layout| provider.allocate(layout).ok())
        .collect();
    for (region, seed) in live.iter().zip(10..) {
        put(transfer, region.base(), &pattern(region.size(), seed));
    }
    for (region, seed) in live.iter().zip(10..) {
        let exported = exports.export(region).expect("exporting");
        let imported =
            imports.import(request(&exported, region.size(), access_of(&exported))).expect("importing");
        let size = region.size();
        assert!(
            get(by_importer, imported.base, size) == pattern(size, seed),
            "an import does not have the bytes of its region"
        );
        put(by_importer, offset_by(imported.base, 3), &pattern(size - 5, seed + 100));
        let read = get(transfer, offset_by(region.base(), 3), size - 5);
        assert!(read == pattern(size - 5, seed + 100), "bytes copied into an import are not in the region");
        refuses(by_importer, imported.base, imported.size + 1, "more than an import");
        // SAFETY: released once, and not used any more.
        unsafe { imports.release(imported) }.expect("releasing");
        refuses(by_importer, imported.base, 1, "an import that was released");
        exports.unexport(region, exported).expect("taking back an export");
    }
    live.into_iter().for_each(|region| free(&*provider, region));
}

/// Four threads copy at the same time. Each reads back its own bytes.
pub fn concurrent_copies_do_not_mix(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some(transfer) = ability(&*provider) else { return };
    let size = provider.page_size();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let provider = &*provider;
            scope.spawn(move || {
                let region = allocate(provider, size, 1);
                for round in 0..20 {
                    let bytes = pattern(size, thread * 60 + round);
                    put(transfer, region.base(), &bytes);
                    assert!(get(transfer, region.base(), size) == bytes, "thread {thread}, round {round}");
                }
                free(provider, region);
            });
        }
    });
}
