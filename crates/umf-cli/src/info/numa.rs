//! NUMA nodes: their memory, processors, distances and, where the firmware tells, speed.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::bytes::human;
use super::finding::{Finding, Group, ask};
use super::kernel_files;
use super::trial::Trial;
use crate::sys::{self, Outcome};

/// Whether memory can be bound.
pub(crate) static BINDING: Trial = Trial {
    key: "mbind",
    why: "Binds a provider's memory to nodes.",
    since: "2.6 with CONFIG_NUMA",
    attempt: bind,
};

/// Probes the nodes.
pub(crate) fn probe() -> Group {
    let folders = kernel_files::entries("/sys/devices/system/node", |name| {
        name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok())
    });
    let mut findings = vec![count(folders.len())];
    findings.extend(folders.iter().map(|folder| node(folder)));
    findings.push(BINDING.run());
    findings.push(attributes(&folders));
    Group { key: "numa", title: "NUMA", findings }
}

fn count(nodes: usize) -> Finding {
    let question = ask("nodes", "Memory near the processor or device that uses it.");
    match nodes {
        0 => question.unknown("/sys/devices/system/node: not there"),
        1 => question.ok("1: nothing to choose").value(1),
        _ => question.ok(nodes.to_string()).value(nodes),
    }
}

fn node(folder: &Path) -> Finding {
    let question = ask(kernel_files::name(folder), "A place that memory can be bound to.");
    let meminfo = kernel_files::text(folder.join("meminfo")).unwrap_or_default();
    // Lines are "Node 0 MemTotal: 1024 kB".
    let bytes = |key: &str| {
        meminfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.ends_with(key).then(|| kernel_files::kilobytes(value))?
        })
    };
    let (total, free) = (bytes(" MemTotal").unwrap_or(0), bytes(" MemFree").unwrap_or(0));
    let processors = kernel_files::text(folder.join("cpulist")).unwrap_or_default();
    let distances: Vec<u64> = kernel_files::text(folder.join("distance"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|distance| distance.parse().ok())
        .collect();
    let memory =
        if total == 0 { "no memory".to_owned() } else { format!("{} of {} free", human(free), human(total)) };
    let with = if processors.is_empty() { "no cpus".to_owned() } else { format!("cpus {processors}") };
    let far: Vec<String> = distances.iter().map(u64::to_string).collect();
    let value = json!({ "total": total, "free": free, "cpus": processors, "distances": distances });
    question.ok(format!("{memory}, {with}, distances {}", far.join(" "))).value(value)
}

/// Binds a page to the first node that this process may use.
fn bind() -> Outcome<()> {
    let status = kernel_files::text("/proc/self/status").unwrap_or_default();
    let first =
        kernel_files::field(&status, "Mems_allowed_list").and_then(|list| list.split(['-', ',']).next());
    sys::bind_to_node(first.and_then(|first| first.parse().ok()).unwrap_or(0))
}

/// What the firmware's table (HMAT) says of each node's speed, as seen from its nearest processors.
fn attributes(folders: &[std::path::PathBuf]) -> Finding {
    let question = ask("hmat", "Tells fast memory from slow: which node is the best for a processor.");
    let mut nodes = Map::new();
    let mut said = Vec::new();
    for folder in folders {
        let mut node = Map::new();
        for attribute in ["read_bandwidth", "write_bandwidth", "read_latency", "write_latency"] {
            if let Ok(number) = kernel_files::number(folder.join("access0/initiators").join(attribute)) {
                node.insert(attribute.to_owned(), number.into());
            }
        }
        if node.is_empty() {
            continue;
        }
        let name = kernel_files::name(folder);
        let read = |attribute: &str| node.get(attribute).map_or("?".to_owned(), Value::to_string);
        said.push(format!("{name} {} MB/s {} ns", read("read_bandwidth"), read("read_latency")));
        nodes.insert(name, Value::Object(node));
    }
    if !nodes.is_empty() {
        return question.ok(said.join("; ")).value(nodes);
    }
    let finding = if folders.len() > 1 {
        question.missing("not told", "Firmware with an HMAT table; until then distances decide.")
    } else {
        question.ok("not told, and nothing to choose")
    };
    finding.value(Value::Null)
}
