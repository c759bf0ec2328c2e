//! `umf info`, group "numa": memory, processors and distances of NUMA nodes, and HMAT figures. `umf
//! info --topology` prints all of it.

use serde_json::{Map, Value, json};
use umf::topology::{Error, Node, Performance, Topology};

use super::finding::{Finding, Group, ask};
use super::kernel::FeatureTest;
use super::procfs;
use crate::output::format_bytes;
use crate::sys::{self, SysResult};

/// Test of `mbind`.
pub(crate) static BIND_TEST: FeatureTest = FeatureTest {
    key: "mbind",
    why: "Binds a provider's memory to nodes.",
    since: "2.6 with CONFIG_NUMA",
    call: "mbind",
    test: bind,
};

/// Probes the NUMA nodes.
pub(crate) fn probe() -> Group {
    let mut findings = Vec::new();
    match Topology::of_this_machine() {
        Ok(topology) => {
            findings.push(count(&topology));
            findings.extend(topology.nodes().iter().map(|node| node_finding(node)));
            findings.push(cpuset(&topology));
            findings.push(BIND_TEST.run());
            findings.push(hmat(&topology));
        }
        Err(error) => {
            findings.push(unread(&error));
            findings.push(BIND_TEST.run());
        }
    }
    Group { key: "numa", title: "NUMA", findings }
}

const NODES: (&str, &str) = ("nodes", "Memory near the processor or device that uses it.");

fn unread(error: &Error) -> Finding {
    let question = ask(NODES.0, NODES.1);
    match error {
        Error::NoSysfs { path } => question.unknown(format!("{}: not there", path.display())),
        error => {
            let remedy = "Run where the kernel's own /sys and /proc are; memory spaces cannot be had here.";
            question.limited(error.to_string(), remedy).value(Value::Null)
        }
    }
}

fn count(topology: &Topology) -> Finding {
    let question = ask(NODES.0, NODES.1);
    if !topology.has_numa() {
        let remedy =
            "A kernel with CONFIG_NUMA, if the machine has several nodes; here placing memory does nothing.";
        return question.limited("this kernel knows no nodes", remedy).value(1);
    }
    let offline = topology.offline();
    match topology.nodes().len() {
        1 => question.ok("1: nothing to choose").value(1),
        nodes if offline.is_empty() => question.ok(nodes.to_string()).value(nodes),
        nodes => question.ok(format!("{nodes}; offline: {offline}")).value(nodes),
    }
}

fn node_finding(node: &Node) -> Finding {
    let question = ask(format!("node{}", node.id), "A place that memory can be bound to.");
    let (total, free) = (node.memory.total, node.memory.free);
    let memory = if total == 0 {
        "no memory".to_owned()
    } else {
        format!("{} of {} free", format_bytes(free), format_bytes(total))
    };
    let processors = if node.cpus.is_empty() { String::new() } else { node.cpus.to_string() };
    let with = if processors.is_empty() { "no cpus".to_owned() } else { format!("cpus {processors}") };
    let distances: Vec<u32> = node.distances.iter().map(|(_, distance)| *distance).collect();
    let far: Vec<String> = distances.iter().map(u32::to_string).collect();
    let value = json!({ "total": total, "free": free, "cpus": processors, "distances": distances });
    question.ok(format!("{memory}, {with}, distances {}", far.join(" "))).value(value)
}

/// Reports the nodes whose memory this process may not use.
fn cpuset(topology: &Topology) -> Finding {
    let question = ask("cpuset", "Memory spaces are made of the nodes that this process may use.");
    let with_memory = || topology.nodes().iter().filter(|node| node.memory.total > 0);
    let forbidden: Vec<u32> = with_memory().filter(|node| !node.is_allowed).map(|node| node.id).collect();
    let allowed: Vec<u32> = with_memory().filter(|node| node.is_allowed).map(|node| node.id).collect();
    let value = json!({ "allowed": allowed, "forbidden": forbidden });
    if forbidden.is_empty() {
        return question.ok("all nodes are allowed").value(value);
    }
    let list: Vec<String> = forbidden.iter().map(u32::to_string).collect();
    let remedy = "Have the container or job grant them: cpuset.mems of its cgroup, `docker run --cpuset-mems=...`, `srun --mem-bind=...`.";
    question.limited(format!("not allowed: nodes {}", list.join(", ")), remedy).value(value)
}

/// Binds a page to the first node that this process may use.
fn bind() -> SysResult<()> {
    let status = procfs::text("/proc/self/status").unwrap_or_default();
    let first = procfs::field(&status, "Mems_allowed_list").and_then(|list| list.split(['-', ',']).next());
    sys::bind_to_node(first.and_then(|first| first.parse().ok()).unwrap_or(0))
}

/// Reports the speed of each node as seen from its nearest processors (ACPI HMAT).
fn hmat(topology: &Topology) -> Finding {
    let question = ask("hmat", "Tells fast memory from slow: which node is the best for a processor.");
    let mut nodes = Map::new();
    let mut texts = Vec::new();
    for node in topology.nodes() {
        let Some(performance) = node.best_performance() else { continue };
        let word = |figure: Option<u64>| figure.map_or("?".to_owned(), |figure| figure.to_string());
        let name = format!("node{}", node.id);
        texts.push(format!(
            "{name} {} MB/s {} ns",
            word(performance.read_bandwidth),
            word(performance.read_latency)
        ));
        nodes.insert(name, value(performance));
    }
    if !nodes.is_empty() {
        return question.ok(texts.join("; ")).value(nodes);
    }
    let several = topology.all().len() > 1;
    let finding = if several {
        let remedy = "Firmware with an HMAT table, and Linux 5.2 or newer. Until then distances tell what is near, and \
                      nothing tells what is fast: name nodes (`numa_nodes`) or another memory space (`numa_space`).";
        question.missing("unknown", remedy)
    } else {
        question.ok("unknown, and nothing to choose")
    };
    finding.value(Value::Null)
}

fn value(figures: Performance) -> Value {
    let values = [
        ("read_bandwidth", figures.read_bandwidth),
        ("write_bandwidth", figures.write_bandwidth),
        ("read_latency", figures.read_latency),
        ("write_latency", figures.write_latency),
    ];
    let values = values.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure?.into())));
    Value::Object(values.collect())
}
