//! Cases about device copies, for memory that the CPU cannot access.

use super::export::{access_of, request};
use super::memory::{allocate, free, is_accessible};
use super::process::{run_exclusive, run_shared};
use super::{MakeProvider, skip};
use umf_core::{Address, Layout, Provider, Region, Transfer};

/// Returns the ability; prints a line if the memory has no means of access.
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
    assert!(get(transfer, one.base(), size) == expected, "a region is not what was copied into it");
    assert!(get(transfer, other.base(), other.size()) == pattern(other.size(), 2), "a neighbour was changed");
    // SAFETY: memory of this test without references into it.
    unsafe { transfer.copy(offset_by(one.base(), page + 5), offset_by(other.base(), 9), page) }
        .expect("copying");
    let copied = get(transfer, offset_by(other.base(), 9), page);
    assert!(copied == expected[page + 5..2 * page + 5], "a copy between regions went wrong");
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
        let mut room = vec![0; size];
        // SAFETY: the call fails and accesses nothing.
        assert!(unsafe { transfer.read(at, &mut room) }.is_err(), "{what} was read");
        // SAFETY: the call fails and accesses nothing.
        assert!(unsafe { transfer.write(at, &room) }.is_err(), "{what} was written");
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
            "an import holds something else"
        );
        put(by_importer, offset_by(imported.base, 3), &pattern(size - 5, seed + 100));
        let seen = get(transfer, offset_by(region.base(), 3), size - 5);
        assert!(seen == pattern(size - 5, seed + 100), "what was copied into an import is not in the region");
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
