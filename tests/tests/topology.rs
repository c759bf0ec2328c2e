//! What a machine says of its NUMA nodes, held against what is known of it: in the guest of the boot `numa`, whose nodes are made.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use umf::topology::Topology;
use umf_tests::machine;

/// As `tests/vm/boots/numa` has it: number, MiB of memory at most, processors, nanoseconds and MiB/s from where it is nearest.
const NODES: [(u32, u64, &str, u64, u64); 4] = [
    (0, 2048, "0", 80, 20_000),
    (1, 2048, "1", 80, 20_000),
    (2, 1024, "2", 100, 5000),
    (3, 1024, "", 200, 40_000),
];

fn read(node: u32, file: &str) -> Option<String> {
    let path = format!("/sys/devices/system/node/node{node}/{file}");
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[test]
fn nodes_have_the_figures_that_the_guest_was_made_with() {
    if std::env::var_os("TESTS_GUEST").is_none_or(|boot| boot != "numa") {
        return machine::skip("nodes_have_the_figures", "looks at the guest of tests/vm/run numa");
    }
    let topology = Topology::of_this_machine().unwrap();
    assert!(topology.has_figures());
    assert_eq!(topology.nodes().len(), NODES.len());
    for (id, mib, processors, latency, bandwidth) in NODES {
        // The kernel's own words first.
        assert_eq!(read(id, "cpulist").unwrap(), processors, "node {id}");
        for (file, value) in [
            ("read_latency", latency),
            ("write_latency", latency),
            ("read_bandwidth", bandwidth),
            ("write_bandwidth", bandwidth),
        ] {
            let raw = read(id, &format!("access1/initiators/{file}"));
            assert_eq!(raw, Some(value.to_string()), "node {id}, {file}");
        }
        // What is made of them.
        let node = topology.node(id).unwrap();
        assert_eq!(node.cpus.to_string(), if processors.is_empty() { "none" } else { processors });
        let total = node.memory.total >> 20;
        assert!(total <= mib && total > mib / 2, "node {id}: {total} MiB");
        let figures = node.best_figures().unwrap();
        assert_eq!(
            (figures.read_latency, figures.read_bandwidth),
            (Some(latency), Some(bandwidth)),
            "node {id}"
        );
        assert_eq!(node.distance_to(id), Some(10));
        assert_eq!(node.distance_to(3 - id), Some(if id == 0 || id == 3 { 30 } else { 20 }));
    }
    let of = |space: umf::topology::MemorySpace| space.ids().collect::<Vec<_>>();
    assert_eq!(of(topology.all()), [0, 1, 2, 3]);
}
