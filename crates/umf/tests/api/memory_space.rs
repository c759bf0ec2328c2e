//! Memory is on the nodes of its memory space, which `move_pages(2)` shows. The guest `numa` of
//! tests/vm has four nodes; a machine with one node tests little.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use crate::alone::ran_alone;
use std::collections::BTreeMap;

use umf::Pool;
use umf::host::Numa;
use umf::memory_space::{self, Attribute, MemorySpace, Policy, Weights};
use umf::settings::{Context, Loader};
use umf::topology::{Initiator, Topology};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// Returns the topology of the machine. Returns `None`, and prints a note, if it cannot be read or
/// if the kernel does not bind memory.
fn topology(test: &str) -> Option<Topology> {
    match Topology::of_this_machine() {
        Ok(topology) if topology.has_numa() => Some(topology),
        Ok(_) => {
            println!("umf-skip: {test}: this kernel knows no NUMA nodes");
            None
        }
        Err(error) => {
            println!("umf-skip: {test}: {error}");
            None
        }
    }
}

/// Returns how many pages of a new block are on each node.
fn places(pool: &Pool) -> BTreeMap<i32, usize> {
    let block = pool.allocate_aligned(PAGES * PAGE, PAGE).unwrap();
    for page in 0..PAGES {
        block.write(page * PAGE, &[1]).unwrap();
    }
    let base: *mut u8 = block.address().as_ptr().unwrap();
    let pages: Vec<_> = (0..PAGES).map(|page| base.wrapping_add(page * PAGE)).collect();
    let mut found = vec![-1_i32; PAGES];
    let no_nodes: *const i32 = std::ptr::null();
    // SAFETY: both arrays have `pages.len()` elements. Without target nodes the call moves nothing.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), no_nodes, found.as_mut_ptr(), 0)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let mut counted = BTreeMap::new();
    for node in found {
        *counted.entry(node).or_default() += 1;
    }
    counted
}

/// Returns a pool that allocates each block from the provider, so that no page was used before.
fn pool(space: &MemorySpace, policy: &Policy) -> Pool {
    let provider = memory_space::provider(space, policy).unwrap();
    Pool::from_pool(umf::pools::ProxyPool::new(provider).unwrap())
}

fn only(node: u32) -> BTreeMap<i32, usize> {
    BTreeMap::from([(node.cast_signed(), PAGES)])
}

#[test]
fn pools_lie_on_their_space() {
    let Some(topology) = topology("pools_lie_on_their_space") else { return };
    let all = topology.all();
    for node in &all {
        let alone = topology.space([node.id]).unwrap();
        for policy in [Policy::Bind, Policy::Preferred, Policy::PreferredMany, Policy::Split(Weights::Equal)]
        {
            assert_eq!(places(&pool(&alone, &policy)), only(node.id), "{policy:?}");
        }
        // The first node is preferred, even if it has not the lowest number.
        let others = alone.union(&all);
        assert_eq!(places(&pool(&others, &Policy::Preferred)), only(node.id));
    }
    let in_turn = places(&pool(&all, &Policy::Interleave { part_size: 0 }));
    assert_eq!(in_turn.len(), all.len());
    assert!(
        in_turn.values().all(|&pages| pages == PAGES / all.len() || !PAGES.is_multiple_of(all.len())),
        "{in_turn:?}"
    );
}

#[test]
fn highest_bandwidth_lies_on_the_best_node() {
    let Some(topology) = topology("highest_bandwidth_lies_on_the_best_node") else { return };
    for attribute in [Attribute::Capacity, Attribute::Bandwidth, Attribute::Latency] {
        for from in [Initiator::Process, Initiator::Cpu(0)] {
            let choice = match topology.best(&topology.all(), attribute, from) {
                Ok(choice) => choice,
                Err(error) => {
                    println!("umf-skip: {attribute} from {from:?}: {error}");
                    continue;
                }
            };
            let found = places(&pool(&choice.space, &Policy::Bind));
            assert!(
                found.keys().all(|&node| choice.space.contains(node.cast_unsigned())),
                "{choice:?}: {found:?}"
            );
        }
    }
}

#[test]
fn split_by_bandwidth_is_proportional() {
    let test = "split_by_bandwidth_is_proportional";
    let Some(topology) = topology(test) else { return };
    let space = topology.all();
    let policy = Policy::Split(Weights::Bandwidth);
    let Ok(Numa::Split(shares)) = policy.on(&space) else {
        println!("umf-skip: {test}: this machine has no HMAT table");
        return;
    };
    let total: u64 = shares.iter().map(|share| u64::from(share.weight)).sum();
    let found = places(&pool(&space, &policy));
    for share in &shares {
        let expected = u64::from(share.weight) * PAGES as u64 / total;
        let pages = found.get(&share.node.cast_signed()).copied().unwrap_or(0) as u64;
        assert!(pages.abs_diff(expected) <= 1, "{share:?} of {total}: {found:?}");
    }
}

#[test]
fn settings_name_spaces() {
    if ran_alone("memory_space::settings_name_spaces") {
        return;
    }
    let Some(topology) = topology("settings_name_spaces") else { return };
    let folder = std::env::temp_dir().join(format!("umf-memory-space-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("umf.toml");
    let toml = "[provider.fast]\nnuma = \"bind\"\nnuma_space = [\"highest-bandwidth@cpu0\", \"lowest-latency@cpu0\"]\n\
                [pool.fast]\nkind = \"proxy\"\nprovider = \"fast\"\n\
                [provider.shared]\nvisibility = \"shared\"\nnuma = \"preferred\"\nnuma_space = [\"highest-capacity\"]\n\
                [pool.large]\nkind = \"proxy\"\nprovider = \"shared\"\n";
    std::fs::write(&file, toml).unwrap();
    let loaded = umf::init(Loader::with_context(Context::empty().with_variable("UMF_TOML", &file)));
    std::fs::remove_dir_all(&folder).unwrap();
    loaded.unwrap();
    let fast = topology
        .highest_bandwidth(Initiator::Cpu(0))
        .or_else(|_| topology.lowest_latency(Initiator::Cpu(0)))
        .unwrap();
    let found = places(&Pool::named("fast").unwrap());
    assert!(found.keys().all(|&node| fast.space.contains(node.cast_unsigned())), "{fast:?}: {found:?}");
    let large = topology.highest_capacity().unwrap().space;
    let found = places(&Pool::named("large").unwrap());
    assert!(found.keys().all(|&node| large.contains(node.cast_unsigned())), "{large}: {found:?}");
}
