//! `umf why` and [`why`]: whether a handle is current, and otherwise how its export ended.

use std::io::Read;

use clap::Args;
use umf::Handle;
use umf::ipc::inspect::{self, ExportEnd, FoundLedger, OwnerStatus, RetireReason, Search};

use super::processes::{self, format_age};
use crate::output::{self, Failure};
use crate::sys;

/// Reports whether a handle is current, and if it is not, how and when its export ended.
///
/// Reads the ledger of the process that made it, without contacting that process. Works after the
/// producer was killed, as long as another process has its ledger open.
#[derive(Args)]
pub(crate) struct WhyCommand {
    /// The handle as text (umf1....), or - to read it from standard input
    handle: String,
}

impl WhyCommand {
    /// Reads the handle, and prints the explanation.
    ///
    /// # Errors
    /// The text is not a handle, `/proc` cannot be read, or standard output cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut text = self.handle.clone();
        if text == "-" {
            text.clear();
            // Bounded, because a handle is short.
            std::io::stdin()
                .lock()
                .take(64 << 10)
                .read_to_string(&mut text)
                .map_err(|error| Failure::Message(format!("cannot read standard input: {error}")))?;
        }
        let handle: Handle = text
            .trim()
            .parse()
            .map_err(|error| Failure::Message(format!("unknown: not a handle: {error}")))?;
        sys::raise_fd_limit();
        output::print(&why(&handle).map_err(Failure::Message)?.text)?;
        Ok(())
    }
}

/// Whether a handle is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The handle opens.
    Current,
    /// The memory was freed; its producer runs.
    Stale,
    /// The producer ended, or gave up its ledger.
    ProducerGone,
    /// The handle is forged or of another machine, or its producer cannot be inspected.
    Unknown,
}

/// What became of a handle.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// Whether the handle is current.
    pub state: State,
    /// For people: one line that begins with the state, and lines with details.
    pub text: String,
    /// The process id of the producer: in this pid namespace if it is visible here.
    pub pid: u32,
    /// For a handle of a message, the number of readers that have not opened it yet.
    pub unread: Option<u16>,
    /// Whether an importer has the memory open, or a message keeps it.
    pub is_leased: bool,
    /// The other processes that have memory of the producer open. Empty if it has ended.
    pub importers: Vec<u32>,
}

impl Explanation {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text += line.as_ref();
        self.text += "\n";
    }

    fn begin(&mut self, state: State, line: impl AsRef<str>) {
        self.state = state;
        self.line(line);
    }
}

/// Finds out whether a handle is current, and if it is not, how and when its export ended. Reads
/// the ledgers of this machine, without contacting a process. Takes an fd for each of them.
///
/// # Errors
/// `/proc` cannot be read.
pub fn why(handle: &Handle) -> Result<Explanation, String> {
    let search = processes::scan()?;
    Ok(explain(handle, &search, inspect::now()))
}

fn explain(handle: &Handle, search: &Search, now: u64) -> Explanation {
    let mut out = Explanation {
        state: State::Unknown,
        text: String::new(),
        pid: handle.pid(),
        unread: None,
        is_leased: false,
        importers: Vec::new(),
    };
    if !inspect::is_of_this_boot(handle) {
        out.line("unknown: the handle comes from another machine, or from before this one was booted");
        return out;
    }
    match search.by_nonce(handle.nonce()) {
        Some(found) => explain_from_ledger(&mut out, handle, found, now),
        None => explain_without_ledger(&mut out, handle, search),
    }
    let kind = if handle.is_region() { "a region" } else { "a block" };
    out.line(format!(
        "  names: {kind} of {} at offset {} of region {} ({}), provider {}",
        output::format_bytes(handle.length()),
        handle.offset(),
        handle.region_id(),
        output::format_bytes(handle.region_size()),
        handle.provider_kind(),
    ));
    list_importers(&mut out, handle, search);
    out
}

/// Returns the name of a running process in parentheses, or an empty string.
fn name_in_parentheses(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = processes::plain(String::from_utf8_lossy(&name).trim_end());
    if name.is_empty() { String::new() } else { format!(" ({name})") }
}

fn explain_from_ledger(out: &mut Explanation, handle: &Handle, found: &FoundLedger, now: u64) {
    let slot = found.ledger.slot(handle.slot());
    let generation = slot.map_or(0, |slot| slot.generation);
    let current = generation == handle.generation();
    let end = slot.and_then(|slot| slot.ended).filter(|end| end.generation == handle.generation());
    let place = format!("slot {}, generation {}", handle.slot(), handle.generation());
    let pid = found.owner.pid().unwrap_or_else(|| handle.pid());
    out.pid = pid;
    let statistics = found.ledger.statistics().unwrap_or_default();
    let name = if statistics.name.is_empty() { String::new() } else { format!(" ({})", statistics.name) };
    if generation < handle.generation() {
        out.line(format!(
            "unknown: {place}: the ledger of pid {pid}{name} never had that (it has {generation}): the handle is forged"
        ));
        return;
    }
    let contradicts = slot.and_then(|slot| slot.content).is_some_and(|it| {
        current && (it.region_id != handle.region_id() || it.region_size != handle.region_size())
    });
    if contradicts {
        out.line(format!(
            "unknown: {place}: handle and ledger of pid {pid}{name} disagree: one of them is forged"
        ));
        return;
    }
    match found.owner {
        OwnerStatus::Alive { .. } | OwnerStatus::Elsewhere { .. } if current => {
            let when =
                slot.and_then(|slot| slot.exported).map_or(String::new(), |time| format_age(now, time) + " ");
            out.begin(State::Current, format!("current: exported {when}by pid {pid}{name}, {place}"));
        }
        OwnerStatus::Alive { .. } | OwnerStatus::Elsewhere { .. } => {
            let how = describe_end(end, now);
            out.begin(State::Stale, format!("stale: {how}, {place}, now {generation}"));
            out.line(format!("  producer: pid {pid}{name} runs; get a new handle from it"));
        }
        OwnerStatus::Ended | OwnerStatus::Detached { .. } | OwnerStatus::Unknown => {
            let what = match found.owner {
                OwnerStatus::Ended => format!("producer gone: pid {pid}{name} ended"),
                OwnerStatus::Detached { .. } => {
                    format!("producer gone: pid {pid}{name} runs, but called exec or dropped its exporter")
                }
                _ => {
                    format!("producer gone, or invisible in another pid namespace: pid {pid}{name} there")
                }
            };
            let holders: Vec<_> = found
                .holders
                .iter()
                .map(|&holder| format!("pid {holder}{}", name_in_parentheses(holder)))
                .collect();
            let line = format!("{what}; its ledger is still open in {}", holders.join(", "));
            out.begin(State::ProducerGone, line);
            let last = if current {
                "still current when it ended: existing mappings stay valid, new opens fail".to_owned()
            } else {
                describe_end(end, now)
            };
            out.line(format!("  this export: {last}, {place}, now {generation}"));
        }
    }
    // With a higher generation, the lease rows belong to a later export of the slot.
    if generation - handle.generation() <= 1 {
        list_open_leases(out, handle, found, current);
    }
}

/// Lists the importers that have the handle's export open, by their rows in the producer's lease
/// table.
fn list_open_leases(out: &mut Explanation, handle: &Handle, found: &FoundLedger, is_current: bool) {
    if handle.has_ticket() {
        out.unread = Some(found.readers_of(handle).unwrap_or(0));
        out.line(match found.readers_of(handle) {
            Some(1) => "  in transit: one reader has not opened it yet".to_owned(),
            Some(readers) => format!("  in transit: {readers} readers have not opened it yet"),
            None => "  its ticket: opened by all its readers, cancelled, or its sender ended".to_owned(),
        });
    }
    // A grant has its lease in the producer, whose server opens the block.
    if let OwnerStatus::Alive { pid } = found.owner {
        for grant in umf::remote::grants_of(pid).iter().filter(|grant| grant.is_of(handle)) {
            let left = processes::format_duration(grant.time_left().as_nanos() as u64);
            out.line(format!("  granted: a remote importer at {} may write for {left}", grant.importer));
        }
    }
    for row in found.lease_rows(handle.slot()).iter().filter(|row| row.is_owned && row.count > 0) {
        out.is_leased = true;
        if row.is_of_tickets {
            out.line(format!(
                "  sent: {} in messages of a process that calls itself pid {} (uid {})",
                row.count, row.pid, row.uid
            ));
            continue;
        }
        let times = if row.count == 1 { "once".to_owned() } else { format!("{} times", row.count) };
        // Equal in another pid namespace, too.
        let own = if row.pid == found.ledger.identity().pid { ", as the producer does" } else { "" };
        out.line(format!(
            "  open: {times} in an importer that calls itself pid {} (uid {}){own}",
            row.pid, row.uid
        ));
    }
    if out.is_leased && !is_current {
        let size = output::format_bytes(handle.length());
        out.line(format!("  held: {size}, until the last process closes it and the last message was read"));
    }
}

fn explain_without_ledger(out: &mut Explanation, handle: &Handle, search: &Search) {
    let pid = handle.pid();
    let owner = search.producer_of(handle);
    let state = match owner {
        OwnerStatus::Ended | OwnerStatus::Detached { .. } => State::ProducerGone,
        OwnerStatus::Alive { .. } | OwnerStatus::Elsewhere { .. } | OwnerStatus::Unknown => State::Unknown,
    };
    let line = match owner {
        OwnerStatus::Ended => format!(
            "producer gone: pid {pid} ended, and no process that can be inspected has its ledger open: when and why \
             the memory was freed is no longer known"
        ),
        OwnerStatus::Detached { .. } => format!(
            "producer gone: pid {pid}{} runs, but gave up the ledger: it called exec, or dropped its exporter",
            name_in_parentheses(pid)
        ),
        OwnerStatus::Alive { .. } => format!(
            "unknown: pid {pid}{} runs, and may not be inspected: run as root, or as its user",
            name_in_parentheses(pid)
        ),
        OwnerStatus::Elsewhere { .. } | OwnerStatus::Unknown => format!(
            "unknown: the producer is pid {pid} of another pid namespace, and no process here has its ledger open: run \
             this in its container, on the host as root, or with UMF_IPC_DIR set to its directory"
        ),
    };
    out.begin(state, line);
    if !search.denied.is_empty() {
        out.text.push_str("  ");
        out.text.push_str(&processes::denied_note(search));
    }
}

/// Returns how the handle's export ended, if its slot still records that.
fn describe_end(end: Option<ExportEnd>, now: u64) -> String {
    let Some(ExportEnd { time, reason, .. }) = end else {
        return "ended before the last export of its slot that ended: when and why is no longer known"
            .to_owned();
    };
    let when = format_age(now, time);
    match reason {
        RetireReason::BlockFreed => format!("freed {when}"),
        RetireReason::RegionFreed => format!("freed {when} with its whole region"),
        RetireReason::Evicted => format!(
            "evicted {when} from the exporter's cache (it was not in use; UMF_MAX_CREATED_IPC_HANDLES, or \
             evict_idle): the memory may still be there"
        ),
        RetireReason::ExporterDropped => format!("ended {when} as its exporter was dropped"),
        _ => format!("retired {when}"),
    }
}

/// Lists the processes that have the producer's ledger open.
fn list_importers(out: &mut Explanation, handle: &Handle, search: &Search) {
    if let Some(found) = search.by_nonce(handle.nonce())
        && let OwnerStatus::Alive { pid: owner } = found.owner
    {
        out.importers = found.holders.iter().copied().filter(|&pid| pid != owner).collect();
        let list: Vec<_> =
            out.importers.iter().map(|&pid| format!("pid {pid}{}", name_in_parentheses(pid))).collect();
        out.line(match list.as_slice() {
            [] => "  opened by: no other process has its ledger".to_owned(),
            list => format!("  producer's memory opened by: {}", list.join(", ")),
        });
    }
}
