//! Compares the topology of a virtual machine with the command line of QEMU
//! (`tests/vm/boots/numa`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::collections::BTreeMap;

use umf_topology::{Initiator, MemorySpace, Topology};

/// Returns a table of the QEMU configuration: entries of numbers, such as `0:1:21;0:2:13;`. Returns
/// `None`, and prints a note, on other machines.
fn qemu_table(test: &str, variable: &str) -> Option<Vec<Vec<Option<u64>>>> {
    let Ok(text) = std::env::var(variable) else {
        println!("umf-skip: {test}: needs the known nodes of tests/vm/run numa");
        return None;
    };
    let entries =
        text.split_terminator(';').map(|entry| entry.split(':').map(|word| word.parse().ok()).collect());
    Some(entries.collect())
}

fn ids(space: &MemorySpace) -> Vec<u32> {
    space.ids().collect()
}

#[test]
fn nodes_match_the_machine() {
    let Some(nodes) = qemu_table("nodes_match_the_machine", "TESTS_NODES") else { return };
    let topology = Topology::of_this_machine().unwrap();
    assert!(topology.has_numa() && topology.offline().is_empty());
    assert_eq!(topology.nodes().len(), nodes.len());
    for entry in &nodes {
        let [Some(id), Some(mebibytes), cpu, Some(nearest)] = entry[..] else { panic!("{entry:?}") };
        let node = topology.node(u32::try_from(id).unwrap()).unwrap();
        let cpus: Vec<u64> = node.cpus.iter().map(u64::from).collect();
        assert_eq!(cpus, cpu.into_iter().collect::<Vec<_>>());
        // The kernel reserves a part.
        let qemu_table = mebibytes << 20;
        assert!(
            node.memory.total <= qemu_table && node.memory.total > qemu_table / 10 * 8,
            "{} of {qemu_table}",
            node.memory.total
        );
        assert!(node.memory.free <= node.memory.total);
        for access in [&node.access, &node.access_from_cpus] {
            assert_eq!(access.as_ref().unwrap().initiators.to_string(), nearest.to_string(), "node {id}");
        }
    }
    assert_eq!(topology.all().len(), nodes.len());
    let pages: u64 = topology
        .nodes()
        .iter()
        .flat_map(|node| &node.huge_pools)
        .map(|pool| pool.pages * pool.page_size)
        .sum();
    let pools = std::fs::read_dir("/sys/kernel/mm/hugepages").unwrap().map(|pool| {
        let pool = pool.unwrap();
        let name = pool.file_name().into_string().unwrap();
        let size: u64 = name.trim_start_matches("hugepages-").trim_end_matches("kB").parse().unwrap();
        let pages = std::fs::read_to_string(pool.path().join("nr_hugepages")).unwrap();
        size * 1024 * pages.trim().parse::<u64>().unwrap()
    });
    assert_eq!(pages, pools.sum::<u64>());
    assert!(pages > 0, "the boot sets huge pages aside");
}

#[test]
fn distances_match_the_qemu_configuration() {
    let Some(distances) = qemu_table("distances_match_the_qemu_configuration", "TESTS_DISTANCES") else {
        return;
    };
    let topology = Topology::of_this_machine().unwrap();
    for node in topology.nodes() {
        assert_eq!(node.distance_to(node.id), Some(10));
        assert_eq!(node.distances.len(), topology.nodes().len());
    }
    for entry in &distances {
        let numbers: Vec<u32> = entry.iter().map(|number| u32::try_from(number.unwrap()).unwrap()).collect();
        let [one, other, distance] = numbers[..] else { panic!("{entry:?}") };
        for (from, to) in [(one, other), (other, one)] {
            assert_eq!(topology.node(from).unwrap().distance_to(to), Some(distance), "{from} to {to}");
        }
    }
}

#[test]
fn performance_matches_the_qemu_configuration() {
    let Some(speeds) = qemu_table("performance_matches_the_qemu_configuration", "TESTS_SPEEDS") else {
        return;
    };
    let topology = Topology::of_this_machine().unwrap();
    let speeds: BTreeMap<(u64, u64), (u64, u64)> = speeds
        .iter()
        .map(|entry| match entry[..] {
            [Some(from), Some(to), Some(nanoseconds), Some(gibibytes)] => {
                ((from, to), (nanoseconds, gibibytes))
            }
            _ => panic!("{entry:?}"),
        })
        .collect();
    let mut seen = 0;
    for node in topology.nodes() {
        for from in topology.nodes() {
            let Some(figures) = node.performance_from(from.id) else { continue };
            let (nanoseconds, gibibytes) = speeds[&(u64::from(from.id), u64::from(node.id))];
            let bandwidth = (gibibytes * 1024, gibibytes * 1024);
            assert_eq!(figures.bandwidth(), Some(bandwidth), "{} to {}", from.id, node.id);
            assert_eq!(figures.latency(), Some((nanoseconds, nanoseconds)), "{} to {}", from.id, node.id);
            seen += 1;
        }
    }
    assert_eq!(seen, topology.nodes().len(), "each as its nearest node sees it");
}

#[test]
fn spaces_follow_the_performance_data() {
    let Some(nodes) = qemu_table("spaces_follow_the_performance_data", "TESTS_NODES") else { return };
    let Some(speeds) = qemu_table("spaces_follow_the_performance_data", "TESTS_SPEEDS") else { return };
    let topology = Topology::of_this_machine().unwrap();
    // Returns the best of the nodes that are nearest to `from`, according to the configuration of
    // QEMU.
    let best = |from: u64, better: fn(&(u64, u64)) -> u64| -> u32 {
        let near = nodes.iter().filter(|entry| entry[3] == Some(from)).map(|entry| entry[0].unwrap());
        let qemu_table = |to: u64| {
            let entry = speeds.iter().find(|entry| (entry[0], entry[1]) == (Some(from), Some(to))).unwrap();
            (entry[2].unwrap(), entry[3].unwrap())
        };
        u32::try_from(near.max_by_key(|&to| better(&qemu_table(to))).unwrap()).unwrap()
    };
    let fast = |from| best(from, |(_, bandwidth)| *bandwidth);
    let quick = |from| best(from, |(latency, _)| u64::MAX - latency);
    assert_ne!(fast(0), quick(0), "the boot has fast memory that is not the nearest");
    for from in [0, 1] {
        let node = Initiator::Node(u32::try_from(from).unwrap());
        assert_eq!(ids(&topology.highest_bandwidth(node).unwrap().space), [fast(from)]);
        assert_eq!(ids(&topology.lowest_latency(node).unwrap().space), [quick(from)]);
    }
    assert_eq!(ids(&topology.highest_bandwidth(Initiator::Any).unwrap().space), [fast(0), fast(1)]);
    // A process that may only run near one of these nodes.
    // SAFETY: zeros are an empty set.
    let mut only: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is this function's, and large enough for processor 0.
    unsafe { libc::CPU_SET(0, &mut only) };
    // SAFETY: the set is valid during the call. The call changes the first thread, whose affinity
    // is in /proc/self/status.
    let set = unsafe { libc::sched_setaffinity(libc::getpid(), size_of_val(&only), &raw const only) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    let pinned = Topology::of_this_machine().unwrap();
    assert_eq!(ids(&pinned.highest_bandwidth(Initiator::Process).unwrap().space), [fast(0)]);
    assert_eq!(ids(&pinned.lowest_latency(Initiator::Process).unwrap().space), [quick(0)]);
}
