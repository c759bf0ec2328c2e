//! From settings to where a provider's memory lies.

use umf_config::NumaMode;
use umf_provider_host::{NodeSet, NodeShare, Numa};
use umf_topology::{Choice, SpaceName, Topology};

use crate::{Error, Result};

/// What the settings of provider `name` say.
pub(super) fn of(name: &str, set: &umf_config::Provider) -> Result<Numa> {
    let contradiction = |why| Err(Error::Contradiction { what: "provider", name: name.to_owned(), why });
    let named = !set.numa_nodes.is_empty() || !set.numa_space.is_empty();
    match set.numa {
        NumaMode::Default if !set.numa_space.is_empty() => {
            return contradiction(
                "numa_space needs a numa mode: \"bind\", \"preferred\", \"interleave\", \"weighted-interleave\" or \"split\"",
            );
        }
        NumaMode::Local if named => {
            return contradiction(
                "numa = \"local\" takes no numa_nodes and no numa_space; \"preferred\" takes the nearest of them",
            );
        }
        NumaMode::Default => return Ok(Numa::Default),
        NumaMode::Local => return Ok(Numa::Local),
        _ => {}
    }
    if !set.numa_nodes.is_empty() && !set.numa_space.is_empty() {
        return contradiction("numa_nodes and numa_space say the same thing twice: leave one out");
    }
    if set.numa == NumaMode::Split && !set.numa_weights.is_empty() {
        if !set.numa_space.is_empty() {
            return contradiction("numa_weights name nodes: leave numa_space out, or the weights");
        }
        let share = |share: &umf_config::NumaWeight| NodeShare { node: share.node, weight: share.weight };
        return Ok(Numa::Split(set.numa_weights.iter().map(share).collect()));
    }
    // Preferred nodes may be none: then it is the nearest.
    if !named && set.numa != NumaMode::Preferred {
        return contradiction("this numa mode needs numa_nodes or numa_space");
    }
    let nodes =
        if set.numa_space.is_empty() { set.numa_nodes.clone() } else { space(name, &set.numa_space)? };
    let node_set = NodeSet::from_nodes(nodes.iter().copied())?;
    Ok(match set.numa {
        NumaMode::Bind => Numa::Bind(node_set),
        NumaMode::Interleave => Numa::Interleave {
            nodes: node_set,
            part_size: usize::try_from(set.numa_part_size.get()).unwrap_or(usize::MAX),
        },
        NumaMode::WeightedInterleave => Numa::WeightedInterleave(node_set),
        NumaMode::Preferred => Numa::Preferred(node_set),
        NumaMode::Split => Numa::Split(nodes.into_iter().map(|node| NodeShare { node, weight: 1 }).collect()),
        _ => Numa::Default,
    })
}

/// The nodes of the first of these spaces that the machine can tell.
fn space(provider: &str, names: &[SpaceName]) -> Result<Vec<u32>> {
    let topology = Topology::of_this_machine()?;
    let choice = first(&topology, names)?;
    tracing::debug!(provider, space = %choice.space, basis = %choice.basis, "memory is placed");
    Ok(choice.space.ids().collect())
}

fn first(topology: &Topology, names: &[SpaceName]) -> Result<Choice, umf_topology::Error> {
    let mut first_error = umf_topology::Error::Empty;
    for (place, name) in names.iter().enumerate() {
        match name.find(topology) {
            Err(error @ umf_topology::Error::Unmeasured { .. }) if place == 0 => first_error = error,
            Err(umf_topology::Error::Unmeasured { .. }) => {}
            found => return found,
        }
    }
    Err(first_error)
}

#[cfg(test)]
mod tests {
    use umf_topology::{Recording, Source};

    use super::*;

    fn found(recording: &str, names: &str) -> Result<Vec<u32>, umf_topology::Error> {
        let topology = Topology::read(&Source::recording(Recording::new(recording))).unwrap();
        let names: Vec<SpaceName> = names.split(',').map(|name| name.parse().unwrap()).collect();
        first(&topology, &names).map(|choice| choice.space.ids().collect())
    }

    #[test]
    fn the_first_space_that_the_machine_can_tell_is_taken() {
        let told = include_str!("../../../umf-topology/tests/trees/hbm.txt");
        let untold = include_str!("../../../umf-topology/tests/trees/four-nodes.txt");
        assert_eq!(found(told, "highest-bandwidth@cpu0,all"), Ok(vec![2]));
        assert_eq!(found(untold, "highest-bandwidth@cpu0,lowest-latency@cpu1,all"), Ok(vec![1]));
        let error = found(untold, "highest-bandwidth").unwrap_err();
        assert!(matches!(error, umf_topology::Error::Unmeasured { .. }), "{error}");
        // Another error is no reason to take the next.
        let error = found(untold, "lowest-latency@node9,all").unwrap_err();
        assert!(matches!(error, umf_topology::Error::UnknownNode { node: 9, .. }), "{error}");
    }
}
