//! Reads recorded machines. Any text gives a topology or an error, and every topology can be
//! queried for its best nodes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf_topology::{Attribute, Initiator, Recording, Source, Topology};

/// The machine that the input changes. Lines of the input replace or add files.
const MACHINE: &str = include_str!("../../../crates/umf-topology/tests/trees/hbm.txt");

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let replaced = |line: &&str| {
        let path = line.split_once(':').map_or(*line, |(path, _)| path);
        !text.lines().any(|other| other.split_once(':').map_or(other, |(path, _)| path) == path)
    };
    let mut recording: String = MACHINE.lines().filter(replaced).flat_map(|line| [line, "\n"]).collect();
    recording.push_str(&text);
    let source = Source::recording(Recording::new(&recording));
    let topology = match Topology::read(&source) {
        Ok(topology) => topology,
        Err(error) => return drop(error.to_string()),
    };
    // A recording of the source has all that the topology needs.
    let recorded = Recording::of(&source).expect("the source can be read").to_string();
    assert_eq!(Topology::read(&Source::recording(Recording::new(&recorded))), Ok(topology.clone()));
    let all = topology.all();
    for attribute in [Attribute::Capacity, Attribute::Bandwidth, Attribute::Latency] {
        for from in [Initiator::Process, Initiator::Any, Initiator::Cpu(1), Initiator::Node(1)] {
            if let (Ok(best), Ok(ranked)) =
                (topology.best(&all, attribute, from), topology.ranked(&all, attribute, from))
            {
                assert_eq!(ranked.space.len(), all.len());
                assert!(best.space.ids().any(|id| ranked.space.ids().next() == Some(id)));
            }
        }
    }
});
