//! A topology as programs read it.

use serde_json::{Map, Value, json};
use umf::topology::{Access, IdList, Node, Topology};

use super::spaces;

/// Renders a topology as one JSON document.
pub(super) fn render(topology: &Topology) -> String {
    let document = json!({
        "format": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "numa": topology.has_numa(),
        "nodes": topology.nodes().iter().map(|node| of_node(node)).collect::<Vec<_>>(),
        "offline": numbers(&topology.offline()),
        "tiers": topology.tiers().iter().map(|tier| json!({ "tier": tier.id, "nodes": numbers(&tier.nodes) })).collect::<Vec<_>>(),
        "spaces": named_spaces(topology),
    });
    format!("{document:#}\n")
}

fn numbers(list: &IdList) -> Value {
    list.iter().map(Value::from).collect()
}

fn of_node(node: &Node) -> Value {
    let distances: Map<String, Value> =
        node.distances.iter().map(|(to, distance)| (to.to_string(), (*distance).into())).collect();
    json!({
        "node": node.id,
        // A list in the kernel's form: there may be very many.
        "cpus": if node.cpus.is_empty() { String::new() } else { node.cpus.to_string() },
        "memory": node.memory.total,
        "free": node.memory.free,
        "allowed": node.is_allowed,
        "generic_initiator": node.has_generic_initiator,
        "distances": distances,
        "access_from_cpus": node.access_from_cpus.as_ref().map(of_access),
        "access": node.access.as_ref().map(of_access),
        "tier": node.tier,
        "interleave_weight": node.interleave_weight,
        "huge_pages": node.huge_pools.iter().map(|pool| {
            json!({ "size": pool.page_size, "pages": pool.pages, "free": pool.free })
        }).collect::<Vec<_>>(),
        "side_caches": node.side_caches.iter().map(|cache| {
            json!({ "level": cache.level, "size": cache.size, "line_size": cache.line_size })
        }).collect::<Vec<_>>(),
    })
}

fn of_access(access: &Access) -> Value {
    let figures = access.figures;
    json!({
        "initiators": numbers(&access.initiators),
        "read_bandwidth": figures.read_bandwidth,
        "write_bandwidth": figures.write_bandwidth,
        "read_latency": figures.read_latency,
        "write_latency": figures.write_latency,
    })
}

fn named_spaces(topology: &Topology) -> Value {
    let space = |name: umf::topology::SpaceName| match name.find(topology) {
        Ok(choice) => {
            let nodes: Vec<u32> = choice.space.ids().collect();
            json!({ "nodes": nodes, "basis": choice.basis.to_string(), "error": null })
        }
        Err(error) => json!({ "nodes": null, "basis": null, "error": error.to_string() }),
    };
    spaces().into_iter().map(|name| (name.to_string(), space(name))).collect::<Map<_, _>>().into()
}
