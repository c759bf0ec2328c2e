//! [`Guarantee`]: what the library guarantees; and reports of violations.
//!
//! A report has the guarantee, the process and thread, the fields of the handle, the present state
//! of the slot in the producer's ledger, and when and why the last export of the slot ended. `umf
//! why` prints the same from the same source, `umf_ipc::inspect`.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};

use umf::Handle;
use umf::ipc::inspect::{self, FoundLedger};

use crate::shared;

/// A guarantee of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// A block that is freed while it is open keeps its content until it is closed. With `release`,
    /// its pages may read as zeros.
    HeldContent,
    /// Opening a handle of a freed block fails as stale.
    StaleOpen,
    /// A current mapping has the content of its block.
    CurrentContent,
    /// A live block of a live producer can be opened, and its mapping stays current.
    LiveBlock,
    /// Deferred frees complete after the last importer has closed the block or died.
    LeaseEnd,
    /// A process that has dropped all objects holds what it held at its start, and no process
    /// outlives the run.
    NothingLeft,
    /// No process crashes.
    NoCrash,
    /// No process hangs.
    NoHang,
    /// A process of another user cannot open a handle.
    OtherUser,
    /// A live block can be freed, a private pool works in a forked child, and only documented
    /// errors occur.
    Interface,
    /// Objects of a domain keep their content after their creator has ended.
    Domain,
    /// Messages, and views of handed-over memory, keep their content until they are dropped.
    Link,
    /// Two copies of the library in one process open each other's blocks.
    SecondCopy,
}

impl Guarantee {
    /// All guarantees.
    pub const ALL: [Self; 13] = [
        Self::HeldContent,
        Self::StaleOpen,
        Self::CurrentContent,
        Self::LiveBlock,
        Self::LeaseEnd,
        Self::NothingLeft,
        Self::NoCrash,
        Self::NoHang,
        Self::OtherUser,
        Self::Interface,
        Self::Domain,
        Self::Link,
        Self::SecondCopy,
    ];
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeldContent => "held-content",
            Self::StaleOpen => "stale-open",
            Self::CurrentContent => "current-content",
            Self::LiveBlock => "live-block",
            Self::LeaseEnd => "lease-end",
            Self::NothingLeft => "nothing-left",
            Self::NoCrash => "no-crash",
            Self::NoHang => "no-hang",
            Self::OtherUser => "other-user",
            Self::Interface => "interface",
            Self::Domain => "domain",
            Self::Link => "link",
            Self::SecondCopy => "second-copy",
        })
    }
}

/// Number of reports of a process that search the ledgers of all processes, which is slow.
const FULL_REPORTS: u32 = 8;
/// Maximum number of printed reports of a process.
const REPORTS: u32 = 40;

/// Reports a violation.
pub fn violation(guarantee: Guarantee, what: impl fmt::Display) {
    report(guarantee, &what, None);
}

/// Reports a violation that concerns a handle.
pub fn violation_for_handle(guarantee: Guarantee, handle: Option<Handle>, what: impl fmt::Display) {
    report(guarantee, &what, handle);
}

fn report(guarantee: Guarantee, what: &dyn fmt::Display, handle: Option<Handle>) {
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    shared::get().violations[guarantee as usize].fetch_add(1, Ordering::SeqCst);
    let reported = REPORTED.fetch_add(1, Ordering::Relaxed);
    if reported >= REPORTS {
        return;
    }
    let mut text = format!("hostile: VIOLATION of {guarantee}: {what}\n  reported by {}\n", this_thread());
    if let Some(handle) = handle {
        text.push_str(&describe_handle(&handle));
        if reported < FULL_REPORTS {
            text.push_str(&describe_slot(&handle));
            text.push_str(&describe_rows(&handle));
        }
    }
    print(&text);
}

/// Prints a text with one system call, since a forked child may inherit a locked standard error.
pub fn print(text: &str) {
    // SAFETY: the text has that many bytes.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

fn this_thread() -> String {
    // SAFETY: returns a number.
    let thread = unsafe { libc::gettid() };
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    format!("pid {} thread {thread} ({})", std::process::id(), arguments.join(" "))
}

fn describe_handle(handle: &Handle) -> String {
    format!(
        "  handle: producer pid {} nonce {:?} slot {} generation {} region {} ({} bytes) offset {} length {} kind {} \
         fd {:?} flags{}{}{}{}\n",
        handle.pid(),
        handle.nonce(),
        handle.slot(),
        handle.generation(),
        handle.region_id(),
        handle.region_size(),
        handle.offset(),
        handle.length(),
        handle.provider_kind(),
        handle.data_fd(),
        if handle.is_isolated() { " isolated" } else { "" },
        if handle.is_read_only() { " read-only" } else { "" },
        if handle.is_region() { " region" } else { "" },
        if handle.is_served() { " served" } else { "" },
    )
}

/// Describes the slot of a handle in its producer's ledger.
fn describe_slot(handle: &Handle) -> String {
    let search = match inspect::find() {
        Ok(search) => search,
        Err(error) => return format!("  ledger: not found: {error}\n"),
    };
    let now = inspect::now();
    match search.by_nonce(handle.nonce()) {
        None => format!("  ledger: no process has it open, producer {:?}\n", search.producer_of(handle)),
        Some(found) => describe_ledger(found, handle, now),
    }
}

fn describe_ledger(found: &FoundLedger, handle: &Handle, now: u64) -> String {
    let slot = found.ledger.slot(handle.slot());
    let generation = slot.map(|slot| slot.generation);
    let mut text = format!(
        "  ledger: owner {:?}, held by {:?}, slot {} has generation {generation:?} now\n",
        found.owner,
        found.holders,
        handle.slot()
    );
    if let Some(time) = slot.and_then(|slot| slot.exported) {
        let _ = writeln!(text, "  producer: exported {}", ago(now, time));
    }
    if let Some(end) = slot.and_then(|slot| slot.ended) {
        let _ = writeln!(
            text,
            "  producer: generation {} ended {} ({:?})",
            end.generation,
            ago(now, end.time),
            end.reason
        );
    }
    text
}

fn ago(now: u64, then: u64) -> String {
    format!("{} us ago", now.saturating_sub(then) / 1000)
}

/// Describes the rows of the producer's lease table, with their counts of the handle's slot.
fn describe_rows(handle: &Handle) -> String {
    let Ok(search) = inspect::find() else { return "  rows: /proc cannot be read\n".to_owned() };
    let Some(found) = search.by_nonce(handle.nonce()) else {
        return "  rows: the ledger is gone\n".to_owned();
    };
    let rows = found.lease_rows(handle.slot());
    rows.iter().map(|row| format!("  {row:?}\n")).collect()
}
