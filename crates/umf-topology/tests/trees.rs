//! Recorded machines: their topologies, and their best nodes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod recorded;

use recorded::{ALL, FOUR_NODES, HBM, MEMORYLESS, ONE_NODE, Tree};
use umf_topology::{
    Attribute, Basis, Choice, Error, Initiator, MemorySpace, Recording, Source, SpaceName, Topology,
};

const NODES: &str = "sys/devices/system/node";
const STATUS: &str = "proc/self/status";

fn ids(space: &MemorySpace) -> Vec<u32> {
    space.ids().collect()
}

fn found(choice: &Choice) -> (Vec<u32>, Basis) {
    (ids(&choice.space), choice.basis)
}

fn machine(recording: &str) -> Topology {
    Tree::new(recording).read().unwrap()
}

#[test]
fn recording_reads_as_its_files() {
    for (name, recording) in ALL {
        let tree = Tree::new(recording);
        assert_eq!(tree.recorded().unwrap(), tree.read().unwrap(), "{name}");
    }
}

#[test]
fn recording_survives_its_text() {
    let folder = tempfile::tempdir().unwrap();
    for (name, recording) in ALL {
        let root = folder.path().join(name);
        let tree = Tree::new(recording);
        tree.write(&root);
        let recorded = Recording::of(&Source::folder(&root)).unwrap();
        let again = Recording::new(&recorded.to_string());
        assert_eq!(again.to_string(), recorded.to_string(), "{name}");
        assert_eq!(Topology::read(&Source::recording(again)), tree.read(), "{name}");
    }
}

/// The fuzz target found that folders without relevant files were counted, although the recording
/// did not contain them.
#[test]
fn folders_without_relevant_files_are_ignored() {
    let more = "sys/devices/system/node/node3/hugepages/hugepages-524288kB/surplus_hugepages:7\n\
                sys/devices/virtual/memory_tiering/memory_tier99/uevent:\n";
    let source = Source::recording(Recording::new(&format!("{HBM}{more}")));
    let topology = Topology::read(&source).unwrap();
    assert_eq!(topology, Topology::read(&Source::recording(Recording::new(HBM))).unwrap());
    let kept = Recording::of(&source).unwrap();
    assert_eq!(Topology::read(&Source::recording(kept)).unwrap(), topology);
}

#[test]
fn nodes_have_the_content_of_their_files() {
    let topology = machine(HBM);
    assert!(topology.has_numa() && topology.has_performance());
    assert_eq!((topology.online().to_string().as_str(), topology.offline().is_empty()), ("0-3", true));
    let [first, .., slow] = topology.nodes() else { panic!("four nodes") };
    assert_eq!(first.memory.total, 476_404 * 1024);
    assert!(first.memory.free > 0 && first.memory.free < first.memory.total);
    assert_eq!((first.cpus.to_string().as_str(), slow.cpus.is_empty()), ("0", true));
    assert_eq!(slow.distances, [(0, 31), (1, 17), (2, 28), (3, 10)]);
    assert_eq!((slow.distance_to(1), slow.distance_to(9)), (Some(17), None));
    let caches = &first.side_caches;
    assert_eq!(
        (caches.len(), caches[0].level, caches[0].size, caches[0].line_size),
        (1, 1, 16 << 20, Some(64))
    );
    assert_eq!(first.huge_pools.iter().map(|pool| pool.page_size).collect::<Vec<_>>(), [2 << 20, 1 << 30]);
    let access = slow.access_from_cpus.as_ref().unwrap();
    assert_eq!(access.initiators.to_string(), "1");
    assert_eq!(
        (access.performance.read_bandwidth, access.performance.read_latency),
        (Some(30_720), Some(250))
    );
    assert_eq!((slow.performance_from(1).is_some(), slow.performance_from(0)), (true, None));
    assert_eq!((slow.tier, slow.interleave_weight), (Some(75), Some(1)));
    assert_eq!(
        topology.tiers().iter().map(|tier| tier.nodes.to_string()).collect::<Vec<_>>(),
        ["2", "0-1", "3"]
    );
    let with_pages = machine(MEMORYLESS);
    assert_eq!((with_pages.nodes()[2].huge_pools[0].pages, with_pages.nodes()[1].memory.total), (4, 0));
}

#[test]
fn performance_decides_as_seen_from_the_initiators() {
    let topology = machine(HBM);
    // Node 2, the fast memory, is near processor 0; processor 1 has node 1.
    assert_eq!(found(&topology.highest_bandwidth(Initiator::Cpu(0)).unwrap()), (vec![2], Basis::Performance));
    assert_eq!(
        found(&topology.highest_bandwidth(Initiator::Node(1)).unwrap()),
        (vec![1], Basis::Performance)
    );
    assert_eq!(found(&topology.highest_bandwidth(Initiator::Any).unwrap()), (vec![2, 1], Basis::Performance));
    assert_eq!(found(&topology.lowest_latency(Initiator::Any).unwrap()), (vec![0, 1], Basis::Performance));
    assert_eq!(found(&topology.highest_capacity().unwrap()), (vec![3], Basis::Capacity));
    let ranked = |attribute, from| ids(&topology.ranked(&topology.all(), attribute, from).unwrap().space);
    assert_eq!(ranked(Attribute::Bandwidth, Initiator::Any), [2, 0, 1, 3]);
    assert_eq!(ranked(Attribute::Latency, Initiator::Cpu(0)), [0, 2, 1, 3], "measured before far");
    assert_eq!(ranked(Attribute::Capacity, Initiator::Any), [3, 1, 0, 2]);
    // Nodes without measurements are ordered by distance, not by the order in the space.
    let turned = topology.space([3, 1, 2, 0]).unwrap();
    let turned = topology.ranked(&turned, Attribute::Latency, Initiator::Cpu(0)).unwrap();
    assert_eq!(ids(&turned.space), [0, 2, 1, 3]);
    // A process that may only run on processor 1.
    let pinned =
        Tree::new(HBM).with(STATUS, "Cpus_allowed_list:\t1\nMems_allowed_list:\t0-3\n").read().unwrap();
    assert_eq!(found(&pinned.highest_bandwidth(Initiator::Process).unwrap()), (vec![1], Basis::Performance));
    assert_eq!(topology.highest_bandwidth(Initiator::Process), topology.highest_bandwidth(Initiator::Any));
}

#[test]
fn equal_nodes_are_chosen_together() {
    let mut tree = Tree::new(HBM);
    for figure in ["read_bandwidth", "write_bandwidth"] {
        tree = tree.with(&format!("{NODES}/node2/access1/initiators/{figure}"), "204800");
    }
    let topology = tree.read().unwrap();
    assert_eq!(
        found(&topology.highest_bandwidth(Initiator::Cpu(0)).unwrap()),
        (vec![0, 2], Basis::Performance)
    );
    // With equal read bandwidths, the write bandwidth decides.
    let topology =
        tree.with(&format!("{NODES}/node2/access1/initiators/write_bandwidth"), "204801").read().unwrap();
    assert_eq!(found(&topology.highest_bandwidth(Initiator::Cpu(0)).unwrap()), (vec![2], Basis::Performance));
}

#[test]
fn without_hmat_distances_decide_latency_and_bandwidth_is_an_error() {
    let topology = machine(FOUR_NODES);
    assert!(!topology.has_performance());
    assert_eq!(found(&topology.lowest_latency(Initiator::Cpu(1)).unwrap()), (vec![1], Basis::Distances));
    let far = topology.all().difference(&topology.space([1]).unwrap());
    let near = topology.best(&far, Attribute::Latency, Initiator::Cpu(1)).unwrap();
    assert_eq!(found(&near), (vec![3], Basis::Distances), "17 is less than 21");
    let error = topology.highest_bandwidth(Initiator::Any).unwrap_err();
    assert!(matches!(error, Error::NoPerformanceData { attribute: Attribute::Bandwidth, .. }), "{error}");
    assert!(error.to_string().contains("0-3") && error.to_string().contains("HMAT"), "{error}");
    // Measurements of other nodes are not used.
    let figured = machine(HBM);
    let others = figured.space([1, 3]).unwrap();
    assert!(figured.best(&others, Attribute::Bandwidth, Initiator::Cpu(0)).is_err());
    assert_eq!(
        found(&figured.best(&others, Attribute::Latency, Initiator::Cpu(0)).unwrap()),
        (vec![1], Basis::Distances)
    );
}

#[test]
fn performance_of_zero_is_unknown() {
    let mut tree = Tree::new(HBM);
    for node in 0..4 {
        for figure in ["read_bandwidth", "write_bandwidth"] {
            for class in ["access0", "access1"] {
                tree = tree.with(&format!("{NODES}/node{node}/{class}/initiators/{figure}"), "0");
            }
        }
    }
    let topology = tree.read().unwrap();
    assert!(topology.highest_bandwidth(Initiator::Any).is_err());
    assert_eq!(topology.lowest_latency(Initiator::Any).unwrap().basis, Basis::Performance);
}

#[test]
fn only_node_is_the_best() {
    for recording in [Tree::new(ONE_NODE), Tree::new(ONE_NODE).without("distance")] {
        let topology = recording.read().unwrap();
        for choice in
            [topology.highest_bandwidth(Initiator::Any), topology.lowest_latency(Initiator::Process)]
        {
            assert_eq!(found(&choice.unwrap()), (vec![0], Basis::NothingToChoose));
        }
    }
}

#[test]
fn nodes_without_memory_are_only_initiators() {
    let topology = machine(MEMORYLESS);
    assert_eq!(ids(&topology.all()), [0, 2]);
    assert_eq!(found(&topology.lowest_latency(Initiator::Node(1)).unwrap()), (vec![0], Basis::Distances));
    let error = topology.space([0, 1]).unwrap_err();
    assert_eq!(error, Error::NoMemory { node: 1, with_memory: "0,2".parse().unwrap() });
}

#[test]
fn spaces_exclude_nodes_outside_of_the_cpuset() {
    let topology =
        Tree::new(HBM).with(STATUS, "Mems_allowed_list:\t0,3\nCpus_allowed_list:\t0\n").read().unwrap();
    assert_eq!(ids(&topology.all()), [0, 3]);
    assert_eq!(
        found(&topology.highest_bandwidth(Initiator::Process).unwrap()),
        (vec![0], Basis::Performance)
    );
    let error = topology.space([2]).unwrap_err();
    assert!(error.to_string().contains("0,3") && error.to_string().contains("cpuset.mems"), "{error}");
    assert_eq!(
        topology.space([9]).unwrap_err(),
        Error::UnknownNode { node: 9, online: "0-3".parse().unwrap() }
    );
    // No node of the cpuset exists.
    let topology = Tree::new(HBM).with(STATUS, "Mems_allowed_list:\t7\n").read().unwrap();
    assert_eq!(topology.highest_capacity().unwrap_err(), Error::Empty);
    // Without the file `status`, the process may use all nodes.
    assert_eq!(ids(&Tree::new(HBM).without(STATUS).read().unwrap().all()), [0, 1, 2, 3]);
}

#[test]
fn offline_nodes_are_listed_only() {
    let topology = Tree::new(HBM).with(&format!("{NODES}/possible"), "0-5\n").read().unwrap();
    assert_eq!((topology.offline().to_string().as_str(), topology.nodes().len()), ("4-5", 4));
    assert!(topology.node(4).is_none() && topology.space([4]).is_err());
    // Node 1 was removed. The other nodes keep their numbers, and the rows of distances only
    // contain the remaining nodes.
    let mut tree =
        Tree::new(HBM).without("node1/").without("/node1").with(&format!("{NODES}/online"), "0,2-3\n");
    for (node, row) in [(0, "10 13 31"), (2, "13 10 28"), (3, "31 28 10")] {
        tree = tree.with(&format!("{NODES}/node{node}/distance"), row);
    }
    let topology = tree.read().unwrap();
    assert_eq!(topology.node(3).unwrap().distance_to(2), Some(28));
    assert_eq!((topology.offline().to_string().as_str(), topology.node_of_cpu(1)), ("1", None));
    let error = topology.lowest_latency(Initiator::Cpu(1)).unwrap_err();
    assert_eq!(error, Error::UnknownCpu { cpu: 1, online: "0".parse().unwrap() });
}

#[test]
fn spaces_combine_in_order() {
    let topology = machine(HBM);
    let space = |ids: &[u32]| topology.space(ids.iter().copied()).unwrap();
    let (one, other) = (space(&[3, 1, 3]), space(&[0, 1]));
    assert_eq!((ids(&one), one.to_string().as_str()), (vec![3, 1], "nodes 3, 1"));
    assert_eq!(ids(&one.union(&other)), [3, 1, 0]);
    assert_eq!(ids(&one.intersection(&other)), [1]);
    assert_eq!(ids(&one.difference(&other)), [3]);
    assert_eq!(ids(&topology.all().filter(|node| node.memory.total >= 500_000 * 1024)), [1, 3]);
    assert_eq!(ids(&topology.all().sorted_by_key(|node| node.memory.total).first(2)), [2, 0]);
    let mut grown = MemorySpace::new();
    assert!(
        grown.is_empty()
            && grown.insert(topology.nodes()[2].clone())
            && !grown.insert(topology.nodes()[2].clone())
    );
    assert_eq!((grown.capacity(), grown.len()), (topology.nodes()[2].memory.total, 1));
    assert_eq!(grown.remove(2).map(|node| node.id), Some(2));
    assert_eq!((grown.remove(2), grown.to_string().as_str()), (None, "no nodes"));
    assert_eq!(
        topology.best(&grown, Attribute::Latency, Initiator::Any).unwrap_err(),
        Error::Empty,
        "of nothing there is no best"
    );
}

#[test]
fn names_find_spaces() {
    let topology = machine(HBM);
    for (name, expected) in [
        ("all", &[0, 1, 2, 3][..]),
        ("highest-capacity", &[3]),
        ("highest-bandwidth@cpu0", &[2]),
        ("highest-bandwidth", &[2, 1]),
        ("lowest-latency@node1", &[1]),
    ] {
        let name: SpaceName = name.parse().unwrap();
        assert_eq!(ids(&name.find(&topology).unwrap().space), expected, "{name}");
    }
}

#[test]
fn a_kernel_without_numa_is_one_node() {
    let topology = Tree::new(ONE_NODE).without(NODES).read().unwrap();
    assert!(!topology.has_numa());
    assert_eq!((ids(&topology.all()), topology.nodes()[0].cpus.to_string().as_str()), (vec![0], "0-1"));
    assert_eq!(topology.nodes()[0].memory.total, 24_684_096 * 1024);
}

#[test]
fn this_machine_can_be_read() {
    if !std::path::Path::new("/sys/devices/system").exists() {
        println!("umf-skip: this_machine_can_be_read: sysfs is not mounted on /sys");
        return;
    }
    let topology = Topology::of_this_machine().unwrap();
    let all = topology.all();
    assert!(!all.is_empty());
    let status = std::fs::read_to_string(format!("/{STATUS}")).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    assert_eq!(allowed.map(str::trim), Some(all.id_list().to_string().as_str()));
    // SAFETY: the call has no preconditions.
    let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).unwrap();
    assert!(topology.node_of_cpu(cpu).is_some());
}
