//! A recorded machine: any text is a topology or an error, and whatever it is can be asked for its
//! best nodes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf_topology::{Initiator, Attribute, Recording, Source, Topology};

/// A machine that the input changes: files of it are replaced, and others added.
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
    // What is kept of it is all that is needed of it.
    let kept = Recording::of(&source).expect("it was read just now").to_string();
    assert_eq!(Topology::read(&Source::recording(Recording::new(&kept))), Ok(topology.clone()));
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
