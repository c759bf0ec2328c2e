//! Processors, and the unit in which they share memory.

use super::finding::{Finding, Group, ask};
use super::kernel_files;

/// The line that umf keeps its hot words apart by.
const PADDED_TO: u64 = 128;

/// Probes the processors.
pub(crate) fn probe() -> Group {
    Group { key: "cpu", title: "Processors", findings: vec![count(), cache_line()] }
}

fn count() -> Finding {
    let question = ask("count", "Two processes exchange at full speed only on processors of their own.");
    let online = kernel_files::text("/sys/devices/system/cpu/online").ok();
    let online = online.map(|list| format!(" (online: {list})")).unwrap_or_default();
    match std::thread::available_parallelism() {
        Ok(usable) if usable.get() == 1 => question
            .limited(
                format!("1 usable{online}"),
                "Give the job a second processor (taskset, cpuset, cpu quota).",
            )
            .value(1),
        Ok(usable) => question.ok(format!("{usable} usable{online}")).value(usable.get()),
        Err(error) => question.unknown(error.to_string()),
    }
}

fn cache_line() -> Finding {
    let question = ask("cache_line", "Words that different processes write must not share one.");
    match kernel_files::number("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size") {
        Ok(size) if size <= PADDED_TO => question.ok(format!("{size} bytes")).value(size),
        Ok(size) => question
            .limited(format!("{size} bytes"), "None: expect shared counters to be slower.")
            .value(size),
        Err(unread) => question.unknown(unread),
    }
}
