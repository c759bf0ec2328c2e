//! The nodes of pages on a machine with several NUMA nodes, from `move_pages(2)`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use crate::machine::{free, layout, pointer, shared, touch};
use umf_core::{Provider, Region};
use umf_provider_host::{HostBuilder, HostProvider, NodeSet, NodeShare, Numa};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// Returns the number of nodes. Returns `None`, after it has reported that, if there is only one.
fn nodes(test: &str) -> Option<u32> {
    let count = (0..)
        .take_while(|node| std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists());
    let count = u32::try_from(count.count()).unwrap();
    if count < 2 {
        println!("umf-skip: {test}: this machine has one NUMA node");
        return None;
    }
    Some(count)
}

fn both() -> [(&'static str, HostBuilder); 2] {
    [("private", HostProvider::builder()), ("shared", shared())]
}

/// Returns the node of each page of a region.
fn nodes_of(region: &Region) -> Vec<i32> {
    let pages: Vec<_> =
        (0..region.size()).step_by(PAGE).map(|offset| pointer(region).wrapping_add(offset)).collect();
    let mut found = vec![-1_i32; pages.len()];
    let no_nodes: *const i32 = std::ptr::null();
    // SAFETY: both arrays have `pages.len()` elements. Without target nodes the call moves no page.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), no_nodes, found.as_mut_ptr(), 0)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    found
}

/// Returns the nodes of a region's pages with this placement, for private and shared memory.
fn nodes_with(numa: &Numa) -> Vec<(&'static str, Vec<i32>)> {
    both()
        .into_iter()
        .map(|(what, builder)| {
            let provider = builder.numa(numa.clone()).build().unwrap();
            let region = provider.allocate(layout(PAGES * PAGE)).unwrap();
            touch(&region, 1);
            let found = nodes_of(&region);
            free(&provider, region);
            (what, found)
        })
        .collect()
}

#[test]
fn bound_and_preferred_pages_are_on_their_node() {
    let Some(count) = nodes("bound_and_preferred_pages_are_on_their_node") else { return };
    // Includes nodes without processors.
    for node in 0..count {
        let set = NodeSet::from_nodes([node]).unwrap();
        for numa in [Numa::Bind(set), Numa::Preferred(set)] {
            for (what, found) in nodes_with(&numa) {
                assert_eq!(found, vec![node.cast_signed(); PAGES], "{what} {numa:?}");
            }
        }
    }
}

#[test]
fn interleaved_pages_alternate_between_nodes() {
    let Some(count) = nodes("interleaved_pages_alternate_between_nodes") else { return };
    let set = NodeSet::from_nodes(0..count).unwrap();
    for (what, found) in nodes_with(&Numa::Interleave { nodes: set, part_size: 0 }) {
        for pair in found.windows(2) {
            assert_eq!(pair[1], (pair[0] + 1) % count.cast_signed(), "{what}: {found:?}");
        }
    }
    let part = 4 * PAGE;
    for (what, found) in nodes_with(&Numa::Interleave { nodes: set, part_size: part }) {
        let parts: Vec<_> = found.chunks(4).collect();
        assert!(parts.iter().all(|part| part.iter().all(|node| *node == part[0])), "{what}: {found:?}");
        for pair in parts.windows(2) {
            assert_eq!(pair[1][0], (pair[0][0] + 1) % count.cast_signed(), "{what}: {found:?}");
        }
    }
}

#[test]
fn weighted_pages_follow_the_weights_of_the_system() {
    let test = "weighted_pages_follow_the_weights_of_the_system";
    let Some(count) = nodes(test) else { return };
    let path = |node| format!("/sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
    let weight =
        |node| std::fs::read_to_string(path(node)).ok().map(|weight| weight.trim().parse::<usize>().unwrap());
    // On a virtual machine of the tests, sets weights that differ.
    if std::env::var_os("TESTS_GUEST").is_some() && weight(0).is_some() {
        for node in 0..count {
            std::fs::write(path(node), (node % 3 + 1).to_string()).unwrap();
        }
    }
    let set = NodeSet::from_nodes(0..count).unwrap();
    let Some(weights) = (0..count).map(weight).collect::<Option<Vec<_>>>() else {
        let provider = HostProvider::builder().numa(Numa::WeightedInterleave(set)).build().unwrap();
        let error = provider.allocate(layout(PAGES * PAGE)).unwrap_err().to_string();
        assert!(error.contains("6.9"), "{error}");
        return;
    };
    let found = nodes_with(&Numa::WeightedInterleave(set));
    for (what, found) in found {
        let total: usize = weights.iter().sum();
        // Whole rounds, since the first round may begin at any node.
        let whole = &found[..PAGES - PAGES % total];
        for (node, weight) in (0_i32..).zip(&weights) {
            let pages = whole.iter().filter(|&&place| place == node).count();
            assert_eq!(pages, whole.len() / total * weight, "{what}: node {node} of {weights:?}: {found:?}");
        }
    }
}

#[test]
fn split_regions_are_divided_by_weight() {
    let Some(count) = nodes("split_regions_are_divided_by_weight") else { return };
    let last = count - 1;
    let shares = [NodeShare { node: last, weight: 3 }, NodeShare { node: 0, weight: 1 }];
    for (what, found) in nodes_with(&Numa::Split(Box::new(shares))) {
        let expected: Vec<_> =
            (0..PAGES).map(|page| if page < PAGES * 3 / 4 { last.cast_signed() } else { 0 }).collect();
        assert_eq!(found, expected, "{what}");
    }
}
