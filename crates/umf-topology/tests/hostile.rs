//! Malformed files give an error that names the file, and no panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod recorded;

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use recorded::{ALL, HBM, ONE_NODE, Tree};
use umf_topology::{Error, Recording, Source, Topology};

const NODES: &str = "sys/devices/system/node";

#[test]
fn error_names_the_malformed_file() {
    for (file, text) in [
        ("online", "nonsense"),
        ("online", "0-4294967295"),
        ("online", "1024"),
        ("possible", "0-2000"),
        ("has_generic_initiator", "-"),
        ("node1/cpulist", "3-1"),
        ("node0/distance", "10 20"),
        ("node0/distance", "10 20 x 30"),
        ("node0/distance", "10 20 4294967296 30"),
        ("node2/meminfo", "Node 2 MemTotal: much kB"),
        ("node2/meminfo", "Node 2 MemTotal: 18446744073709551615 kB\nNode 2 MemFree: 1 kB"),
        ("node2/meminfo", ""),
        ("node3/access0/initiators/read_bandwidth", "-1"),
        ("node3/access1/initiators/write_latency", "1e9"),
        ("node3/access1/initiators/node1024", ""),
        ("node3/access1/initiators/node99999999999999999999", ""),
        ("node0/memory_side_cache/index1/size", "big"),
        ("node0/memory_side_cache/index4294967296/size", "1"),
        ("node0/hugepages/hugepages-3kB/nr_hugepages", "1"),
        ("node0/hugepages/hugepages-2048kB/nr_hugepages", "many"),
        ("/sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "4000"),
        ("/sys/kernel/mm/mempolicy/weighted_interleave/node0", "4294967296"),
        ("/proc/self/status", "Mems_allowed_list:\teverything"),
        ("/proc/self/status", "Cpus_allowed_list:\t0-1-2"),
    ] {
        let path = match file.strip_prefix('/') {
            Some(path) => path.to_owned(),
            None => format!("{NODES}/{file}"),
        };
        let tree = Tree::new(HBM).with(&path, text);
        for read in [tree.read(), tree.recorded()] {
            let error = read.unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{path}: {error}");
            let folder = path.rsplit_once('/').unwrap().0;
            // The error may be in the name of the folder.
            assert!(
                error.to_string().contains(&path) || error.to_string().contains(folder),
                "{path}: {error}"
            );
        }
    }
}

#[test]
fn error_names_the_missing_file() {
    for missing in ["node2/meminfo", "node0/memory_side_cache/index1/size"] {
        let error = Tree::new(HBM).without(missing).read().unwrap_err();
        assert!(matches!(&error, Error::Missing { path } if path.ends_with(missing)), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let error = Topology::read(&Source::folder(folder.path())).unwrap_err();
    assert!(matches!(&error, Error::NoSysfs { path } if path.starts_with(folder.path())), "{error}");
    assert!(error.to_string().contains("mount -t sysfs"), "{error}");
    assert!(Topology::read(&Source::folder("/proc/self/no such folder")).is_err());
    assert!(Topology::read(&Source::recording(Recording::new(""))).is_err());
}

#[test]
fn optional_files_may_be_missing() {
    for part in [
        "distance",
        "access0",
        "access1",
        "side_cache",
        "hugepages",
        "tiering",
        "weighted",
        "generic",
        "possible",
        "cpulist",
    ] {
        Tree::new(HBM).without(part).read().unwrap_or_else(|error| panic!("without {part}: {error}"));
    }
}

#[test]
fn huge_numbers_take_no_memory() {
    let tree = Tree::new(HBM)
        .with(&format!("{NODES}/node0/cpulist"), "0-4294967295")
        .with(&format!("{NODES}/online"), "1,1021-1023")
        .with(&format!("{NODES}/node1/distance"), "10 0 4294967295 255");
    let mut tree = tree.without("/node0").without("/node2").without("/node3");
    for node in 1021..1024 {
        tree = tree
            .with(
                &format!("{NODES}/node{node}/meminfo"),
                "Node 1 MemTotal: 18014398509481983 kB\nMemFree: 0 kB",
            )
            .with(&format!("{NODES}/node{node}/cpulist"), &format!("{node},5000-4294967295"));
    }
    let topology = tree.with("proc/self/status", "").read().unwrap();
    assert_eq!(topology.all().len(), 4);
    assert_eq!(topology.all().capacity(), u64::MAX, "saturated");
    assert_eq!(topology.node_of_cpu(u32::MAX).unwrap().id, 1021);
    let error = topology.lowest_latency(umf_topology::Initiator::Cpu(4000)).unwrap_err();
    assert!(error.to_string().contains("5000-4294967295"), "{error}");
}

#[test]
fn special_files_are_errors_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::new(ONE_NODE);
    tree.write(folder.path());
    let file = folder.path().join(NODES).join("node0/cpulist");
    let refused = |what: &str| {
        let error = Topology::read(&Source::folder(folder.path())).unwrap_err();
        assert!(matches!(&error, Error::Unreadable { path, .. } if *path == file), "{what}: {error}");
        error.to_string()
    };
    fs::remove_file(&file).unwrap();
    // Opening a FIFO for reading blocks until a process opens it for writing.
    let name = std::ffi::CString::new(file.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    refused("a pipe");
    fs::remove_file(&file).unwrap();
    symlink("/dev/zero", &file).unwrap();
    refused("a device without an end");
    fs::remove_file(&file).unwrap();
    symlink("cpulist", &file).unwrap();
    refused("a link to itself");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused("a folder");
    fs::remove_dir(&file).unwrap();
    fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let error = Topology::read(&Source::folder(folder.path())).unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    fs::write(&file, b"\xFF\xFE").unwrap();
    let error = Topology::read(&Source::folder(folder.path())).unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[test]
fn huge_folders_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    Tree::new(ONE_NODE).write(folder.path());
    let initiators = folder.path().join(NODES).join("node0/access0/initiators");
    fs::create_dir_all(&initiators).unwrap();
    for number in 0..5000 {
        fs::File::create(initiators.join(format!("x{number}"))).unwrap();
    }
    let error = Topology::read(&Source::folder(folder.path())).unwrap_err();
    assert!(matches!(&error, Error::TooLong { of: "entries", path, .. } if *path == initiators), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Puts arbitrary content into one file. Reading gives a topology or an error, and no query of
    /// the topology panics.
    #[test]
    fn read_never_panics(
        which in 0_usize..ALL.len(),
        file in any::<prop::sample::Index>(),
        text in "[0-9,\\- kBMemTotal:Fre\n]{0,60}|\\PC{0,30}",
    ) {
        let tree = Tree::new(ALL[which].1);
        let path = file.get(&tree.0.keys().cloned().collect::<Vec<_>>()).clone();
        if let Ok(topology) = tree.with(&path, &text).recorded() {
            use umf_topology::{Initiator, Attribute};
            let all = topology.all();
            for attribute in [Attribute::Capacity, Attribute::Bandwidth, Attribute::Latency] {
                for from in [Initiator::Process, Initiator::Any, Initiator::Cpu(1), Initiator::Node(1)] {
                    if let (Ok(best), Ok(ranked)) = (topology.best(&all, attribute, from), topology.ranked(&all, attribute, from)) {
                        prop_assert_eq!(ranked.space.len(), all.len());
                        prop_assert!(!best.space.is_empty() && best.space.difference(&all).is_empty());
                        // The first of the ranked nodes is one of the best.
                        prop_assert!(best.space.contains(ranked.space.nodes()[0].id), "{:?} {:?}", attribute, from);
                    }
                }
            }
        }
    }
}
