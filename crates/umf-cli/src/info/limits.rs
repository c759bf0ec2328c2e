//! `umf info`, groups "limits", "huge_pages" and "cpu": resource limits, huge pages, processors.

use std::path::Path;

use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use super::finding::{Finding, Group, ask};
use super::{kernel, procfs};
use crate::output::format_bytes;
use crate::sys;

/// Linux's default number of open files. umf's arenas are designed for it.
const DEFAULT_FILES: u64 = 1024;

/// Linux's default number of mappings.
const DEFAULT_MAPPINGS: u64 = 65_530;

/// Docker's default size of `/dev/shm`.
const SMALL_SHM: u64 = 64 << 20;

/// Probes the limits.
pub(crate) fn probe() -> Group {
    let findings = vec![
        files(),
        locked(),
        address_space(),
        mappings(),
        overcommit(),
        dev_shm(),
        cgroup_memory(),
        dead_memory(),
    ];
    Group { key: "limits", title: "Limits", findings }
}

fn dead_memory() -> Finding {
    let question = ask(
        "dead_memory",
        "Memory of a killed producer stays charged to its control group as long as an importer has a part of it mapped.",
    );
    let search = match umf::ipc::inspect::find() {
        Ok(search) => search,
        Err(error) => return question.unknown(error.to_string()),
    };
    let found = search.dead_memory();
    let value = found.iter().map(|memory| {
        json!({
            "pid": memory.producer.pid,
            "bytes": memory.bytes(),
            "reserved_bytes": memory.reserved_bytes(),
            "holders": memory.holders,
        })
    });
    let value = Value::Array(value.collect());
    if found.is_empty() {
        return question.ok("no importer keeps memory of a killed producer").value(value);
    }
    let text: Vec<_> = found.iter().map(crate::inspect::gc::describe).collect();
    let remedy = "Run `umf gc` as root, which releases what no importer has open. Importers do so themselves at their \
                  next open, close or poll.";
    question.limited(text.join("; "), remedy).value(value)
}

fn files() -> Finding {
    let question =
        ask("rlimit_nofile", "An isolated region costs one fd; an arena of many regions costs one.");
    let limit = sys::resource_limit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
    // The folder's own fd was open while it was read.
    let open = open.map(|count| count.saturating_sub(1) as u64);
    let soft = limit.current.unwrap_or(u64::MAX);
    let fit = soft.saturating_sub(open.unwrap_or(3));
    let text = format!("{} of {}: {} isolated regions fit", count(limit.current), count(limit.maximum), fit);
    let value = json!({ "soft": limit.current, "hard": limit.maximum, "open": open, "regions": fit });
    if soft >= DEFAULT_FILES {
        return question.ok(text).value(value);
    }
    question.limited(text, raise(limit, "n", 1, "nofile", "LimitNOFILE=")).value(value)
}

/// Returns the remedy for a low limit: the command of the shell if this process may raise it, or
/// else where the hard limit is set. `unit` is the unit of the command in bytes.
fn raise(limit: Rlimit, option: &str, unit: u64, name: &str, service: &str) -> String {
    let soft = limit.current.unwrap_or(u64::MAX);
    match limit.maximum {
        None => format!("Run `ulimit -S{option} unlimited` in the shell that starts the program."),
        Some(hard) if hard > soft => {
            format!("Run `ulimit -S{option} {}` in the shell that starts the program.", hard / unit)
        }
        Some(_) => format!(
            "Only root can raise the hard limit: entry {name} in /etc/security/limits.conf, {service} of a \
             service, or `docker run --ulimit`."
        ),
    }
}

fn locked() -> Finding {
    let question = ask("rlimit_memlock", "Bounds memory that is locked or pinned for a device.");
    let limit = sys::resource_limit(Resource::Memlock);
    let value = json!({ "soft": limit.current, "hard": limit.maximum });
    // The kernel checks this capability against the initial user namespace.
    let free = kernel::in_initial_user_namespace() == Some(true)
        && sys::effective_capabilities().is_ok_and(|held| held.contains(CapabilitySet::IPC_LOCK));
    match limit.current {
        None => question.ok("unlimited").value(value),
        Some(soft) if free => {
            question.ok(format!("{}, lifted by CAP_IPC_LOCK", format_bytes(soft))).value(value)
        }
        Some(soft) => question
            .limited(format_bytes(soft), raise(limit, "l", 1024, "memlock", "LimitMEMLOCK="))
            .value(value),
    }
}

fn address_space() -> Finding {
    let question = ask("rlimit_as", "Arenas reserve far more addresses than they use memory.");
    let limit = sys::resource_limit(Resource::As);
    let value = json!({ "soft": limit.current, "hard": limit.maximum });
    match limit.current {
        None => question.ok("unlimited").value(value),
        Some(soft) => {
            let text = format!("{} of address space (ulimit -v, RLIMIT_AS)", format_bytes(soft));
            let raise = raise(limit, "v", 1024, "as", "LimitAS=");
            question.limited(text, format!("{raise} Bound memory with a cgroup instead.")).value(value)
        }
    }
}

fn mappings() -> Finding {
    let question = ask("max_map_count", "Each imported region or arena window is a mapping.");
    match procfs::number("/proc/sys/vm/max_map_count") {
        Ok(most) if most >= DEFAULT_MAPPINGS => question.ok(most.to_string()).value(most),
        Ok(most) => question
            .limited(most.to_string(), format!("Run `sysctl vm.max_map_count={DEFAULT_MAPPINGS}` as root."))
            .value(most),
        Err(unread) => question.unknown(unread),
    }
}

fn overcommit() -> Finding {
    let question =
        ask("overcommit_memory", "Whether memory can be reserved without being accounted at once.");
    match procfs::number("/proc/sys/vm/overcommit_memory") {
        Ok(0) => question.ok("0: heuristic").value(0),
        Ok(1) => question.ok("1: always").value(1),
        Ok(mode) => {
            let meminfo = procfs::text("/proc/meminfo").unwrap_or_default();
            let bytes = |key| procfs::field(&meminfo, key).and_then(procfs::kilobytes);
            let left = bytes("CommitLimit").zip(bytes("Committed_AS"));
            let left = left.map(|(limit, used)| format_bytes(limit.saturating_sub(used)));
            let left = left.map(|left| format!(", {left} left to commit")).unwrap_or_default();
            question
                .limited(
                    format!("{mode}: never{left}"),
                    "Run `sysctl vm.overcommit_memory=0` as root, or raise vm.overcommit_ratio.",
                )
                .value(mode)
        }
        Err(unread) => question.unknown(unread),
    }
}

fn dev_shm() -> Finding {
    let question =
        ask("dev_shm", "Holds named shared memory only; the rest is memfd, which it does not bound.");
    let remedy = "Only for named shared memory: mount a larger tmpfs (`docker run --shm-size=8g`).";
    let found = match sys::file_system("/dev/shm") {
        Ok(found) => found,
        Err(number) => {
            return question
                .missing(format!("not there ({})", procfs::errno_name(number)), remedy)
                .value(Value::Null);
        }
    };
    let size = found.f_blocks.saturating_mul(found.f_frsize);
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{} of {} free", format_bytes(free), format_bytes(size));
    let value = json!({ "size": size, "free": free });
    if free <= SMALL_SHM {
        question.limited(text, remedy).value(value)
    } else {
        question.ok(text).value(value)
    }
}

fn cgroup_memory() -> Finding {
    let question = ask("cgroup_memory", "Shared memory is charged to the cgroup that first touches a page.");
    match umf_os::cgroup::tightest() {
        Ok(None) => question.ok("no limit").value(Value::Null),
        Ok(Some((group, limit))) => {
            let used = group.used();
            let value = json!({ "limit": limit, "used": used, "group": group.folder().to_string_lossy() });
            let text = used.map(|used| format!("{} of ", format_bytes(used))).unwrap_or_default();
            let text = format!("{text}{} used", format_bytes(limit));
            if used.is_some_and(|used| used > limit - limit / 10) {
                question.limited(text, "Raise the container's or job's memory limit.").value(value)
            } else {
                question.ok(text).value(value)
            }
        }
        Err(unread) => question.unknown(unread.to_string()),
    }
}

fn count(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// Probes the huge pages.
pub(super) fn probe_huge_pages() -> Group {
    let mut findings: Vec<Finding> =
        procfs::entries("/sys/kernel/mm/hugepages", |name| name.starts_with("hugepages-"))
            .iter()
            .filter_map(|folder| reserved(folder))
            .collect();
    if findings.is_empty() {
        findings.push(
            ask("hugetlb", "For providers that ask for them: never swapped, few TLB misses.")
                .missing("none", "A kernel with CONFIG_HUGETLBFS, and /sys mounted.")
                .value(Value::Null),
        );
    }
    findings.push(transparent());
    findings.push(transparent_shared());
    Group { key: "huge_pages", title: "Huge pages", findings }
}

fn reserved(folder: &Path) -> Option<Finding> {
    let kilobytes: u64 = procfs::name(folder).strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let size = kilobytes.checked_mul(1024)?;
    let question = ask(
        format!("hugetlb_{}", format_bytes(size).replace(' ', "")),
        "For providers that ask for them: never swapped, few TLB misses.",
    );
    let number = |file| procfs::number(folder.join(file));
    let (total, free) = match (number("nr_hugepages"), number("free_hugepages")) {
        (Ok(total), Ok(free)) => (total, free),
        (Err(unread), _) | (_, Err(unread)) => return Some(question.unknown(unread)),
    };
    let promised = number("resv_hugepages").unwrap_or(0);
    let on_demand = number("nr_overcommit_hugepages").unwrap_or(0);
    let usable = free.saturating_sub(promised);
    let value = json!({ "size": size, "total": total, "free": usable, "on_demand": on_demand });
    let pages = if size < 1 << 30 { 64 } else { 2 };
    let remedy = format!("Run `echo {pages} > {}/nr_hugepages` as root.", folder.display());
    if usable == 0 {
        let text = match (total, on_demand) {
            (0, 0) => "none reserved".to_owned(),
            (_, 0) => format!("all {total} in use"),
            _ => format!("{on_demand} on demand, none free now"),
        };
        let finding = if total == 0 && on_demand == 0 {
            question.missing(text, remedy)
        } else {
            question.limited(text, remedy)
        };
        return Some(finding.value(value));
    }
    let tried = usize::try_from(size).map_err(|_| rustix::io::Errno::NOMEM).and_then(sys::reserve_huge_page);
    Some(match tried {
        Ok(()) => question.ok(format!("{usable} of {total} free")).value(value),
        Err(number) => question
            .limited(
                format!("{usable} of {total} free, but refused ({})", procfs::errno_name(number)),
                "Raise the hugetlb control group's limit of this job.",
            )
            .value(value),
    })
}

fn transparent() -> Finding {
    let question = ask("thp", "Fewer TLB misses in private memory, without reserving anything.");
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = match procfs::text(path) {
        Ok(text) => text,
        Err(unread) => return question.unknown(unread),
    };
    match procfs::chosen(&text) {
        Some("never") | None => {
            question.limited(text, format!("Run `echo madvise > {path}` as root.")).value("never")
        }
        Some(choice) => question.ok(choice).value(choice),
    }
}

fn transparent_shared() -> Finding {
    let question = ask("thp_shared", "The same for shared memory; umf collapses it where this is off.");
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = match procfs::text(path) {
        Ok(text) => text,
        Err(unread) => return question.unknown(unread),
    };
    match procfs::chosen(&text) {
        Some(choice @ ("never" | "deny")) => {
            question.limited(choice, format!("Run `echo advise > {path}` as root.")).value(choice)
        }
        Some(choice) => question.ok(choice).value(choice),
        None => question.unknown(text),
    }
}

/// The line size to which umf pads words that are written by different processors.
const PADDING: u64 = 128;

/// Probes the processors.
pub(super) fn probe_processors() -> Group {
    Group { key: "cpu", title: "Processors", findings: vec![processors(), cache_line()] }
}

fn processors() -> Finding {
    let question = ask("count", "Two processes exchange at full speed only on processors of their own.");
    let online = procfs::text("/sys/devices/system/cpu/online").ok();
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
    match procfs::number("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size") {
        Ok(size) if size <= PADDING => question.ok(format!("{size} bytes")).value(size),
        Ok(size) => question
            .limited(format!("{size} bytes"), "None: expect shared counters to be slower.")
            .value(size),
        Err(unread) => question.unknown(unread),
    }
}
