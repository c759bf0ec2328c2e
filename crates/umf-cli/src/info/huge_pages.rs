//! Huge pages: reserved ones of each size, and transparent ones.

use std::path::Path;

use serde_json::{Value, json};

use super::bytes::human;
use super::finding::{Finding, Group, ask};
use super::kernel_files;
use crate::sys;

/// Probes the huge pages.
pub(crate) fn probe() -> Group {
    let mut findings: Vec<Finding> =
        kernel_files::entries("/sys/kernel/mm/hugepages", |name| name.starts_with("hugepages-"))
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
    let kilobytes: u64 =
        kernel_files::name(folder).strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let size = kilobytes.checked_mul(1024)?;
    let question = ask(
        format!("hugetlb_{}", human(size).replace(' ', "")),
        "For providers that ask for them: never swapped, few TLB misses.",
    );
    let number = |file| kernel_files::number(folder.join(file));
    let (total, free) = match (number("nr_hugepages"), number("free_hugepages")) {
        (Ok(total), Ok(free)) => (total, free),
        (Err(unread), _) | (_, Err(unread)) => return Some(question.unknown(unread)),
    };
    let promised = number("resv_hugepages").unwrap_or(0);
    let on_demand = number("nr_overcommit_hugepages").unwrap_or(0);
    let usable = free.saturating_sub(promised);
    let value = json!({ "size": size, "total": total, "free": usable, "on_demand": on_demand });
    let pages = if size < 1 << 30 { 64 } else { 2 };
    let remedy = format!("echo {pages} > {}/nr_hugepages", folder.display());
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
                format!("{usable} of {total} free, but refused ({})", super::errno::name(number)),
                "Raise the hugetlb control group's limit of this job.",
            )
            .value(value),
    })
}

fn transparent() -> Finding {
    let question = ask("thp", "Fewer TLB misses in private memory, without reserving anything.");
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = match kernel_files::text(path) {
        Ok(text) => text,
        Err(unread) => return question.unknown(unread),
    };
    match kernel_files::chosen(&text) {
        Some("never") | None => question.limited(text, format!("echo madvise > {path}")).value("never"),
        Some(choice) => question.ok(choice).value(choice),
    }
}

fn transparent_shared() -> Finding {
    let question = ask("thp_shared", "The same for shared memory; umf collapses it where this is off.");
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = match kernel_files::text(path) {
        Ok(text) => text,
        Err(unread) => return question.unknown(unread),
    };
    match kernel_files::chosen(&text) {
        Some(choice @ ("never" | "deny")) => {
            question.limited(choice, format!("echo advise > {path}")).value(choice)
        }
        Some(choice) => question.ok(choice).value(choice),
        None => question.unknown(text),
    }
}
