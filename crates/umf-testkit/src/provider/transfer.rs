//! Cases about memory that the CPU must not touch, and that a device copies.

use super::export::{access_of, request};
use super::memory::{allocate, free, is_accessible};
use super::process::{alone, beside_others};
use super::{Make, passed_over};
use umf_core::{Address, Layout, Provider, Region, Transfer};

/// The ability, or `None` with a word about it.
fn ability(provider: &dyn Provider) -> Option<&dyn Transfer> {
    let transfer = provider.transfer();
    if transfer.is_none() && !is_accessible(provider) {
        passed_over(provider, "nobody copies memory that the CPU must not touch");
    }
    transfer
}

#[track_caller]
fn further(base: Address, bytes: usize) -> Address {
    base.checked_add(bytes as u64).expect("inside of the region")
}

fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|place| (place / 7) as u8 ^ (place >> 9) as u8 ^ seed).collect()
}

#[track_caller]
fn put(transfer: &dyn Transfer, to: Address, bytes: &[u8]) {
    // SAFETY: the cases copy to what they allocated or imported, and hold no reference into it.
    if let Err(error) = unsafe { transfer.write(to, bytes) } {
        panic!("copying {} bytes to {to}: {error}", bytes.len());
    }
}

#[track_caller]
fn get(transfer: &dyn Transfer, from: Address, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    // SAFETY: as in `put`.
    if let Err(error) = unsafe { transfer.read(from, &mut bytes) } {
        panic!("copying {size} bytes from {from}: {error}");
    }
    bytes
}

/// Copies and fills reach the bytes that they name and no others; what is not all in one live region is refused.
pub fn copies_reach_the_bytes_that_they_name(make: Make<'_>) {
    let _alone = alone();
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
        put(transfer, further(one.base(), place), &bytes);
        expected[place..place + length].copy_from_slice(&bytes);
    }
    // SAFETY: the test's own memory, into which there is no reference; so below.
    unsafe { transfer.fill(further(one.base(), page + 1), page - 2, 0xA7) }.expect("filling");
    expected[page + 1..2 * page - 1].fill(0xA7);
    assert!(get(transfer, one.base(), size) == expected, "a region is not what was copied into it");
    assert!(get(transfer, other.base(), other.size()) == pattern(other.size(), 2), "a neighbour was changed");
    // SAFETY: as above.
    unsafe { transfer.copy(further(one.base(), page + 5), further(other.base(), 9), page) }.expect("copying");
    let copied = get(transfer, further(other.base(), 9), page);
    assert!(copied == expected[page + 5..2 * page + 5], "a copy between regions went wrong");
    refuses(transfer, one.base(), size + 1, "more than the region");
    refuses(transfer, further(one.base(), size - 1), 2, "past the end of a region");
    refuses(transfer, Address::new(page).expect("an address"), 1, "what nobody has");
    refuses(transfer, one.base(), usize::MAX, "everything");
    let last = one.base();
    free(&*provider, one);
    refuses(transfer, last, 1, "a region that was freed");
    free(&*provider, other);
}

#[track_caller]
fn refuses(transfer: &dyn Transfer, at: Address, size: usize, what: &str) {
    // Of what no process has room for, filling is enough.
    if size < 1 << 26 {
        let mut room = vec![0; size];
        // SAFETY: an error is expected: nothing is touched.
        assert!(unsafe { transfer.read(at, &mut room) }.is_err(), "{what} was read");
        // SAFETY: as above.
        assert!(unsafe { transfer.write(at, &room) }.is_err(), "{what} was written");
    }
    // SAFETY: as above.
    assert!(unsafe { transfer.fill(at, size, 1) }.is_err(), "{what} was filled");
}

/// What one side of an export has copied into it the other side's copies see, at every alignment.
pub fn copies_reach_imports(make: Make<'_>) {
    let _alone = alone();
    let provider = make();
    let Some(transfer) = ability(&*provider) else { return };
    let Some((exports, imports)) = provider.export().zip(provider.import()) else { return };
    let by_importer = imports.transfer().expect("who copies regions copies imports");
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
            "an import holds something else"
        );
        put(by_importer, further(imported.base, 3), &pattern(size - 5, seed + 100));
        let seen = get(transfer, further(region.base(), 3), size - 5);
        assert!(seen == pattern(size - 5, seed + 100), "what was copied into an import is not in the region");
        refuses(by_importer, imported.base, imported.size + 1, "more than an import");
        // SAFETY: released once, and not used any more.
        unsafe { imports.release(imported) }.expect("releasing");
        refuses(by_importer, imported.base, 1, "an import that was released");
        exports.unexport(region, exported).expect("taking back an export");
    }
    live.into_iter().for_each(|region| free(&*provider, region));
}

/// Four threads copy at once; none finds another's bytes.
pub fn threads_copy_at_once(make: Make<'_>) {
    let _beside = beside_others();
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
