//! Promises of the library, and reports of those that are broken.
//!
//! A report says which promise, which process and thread, what the handle says, what the producer's
//! ledger says now, and when and why the last export of the slot ended. `umf why` prints the same
//! from the same source, `umf_ipc::inspect`.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};

use umf::Handle;
use umf::ipc::inspect::{self, FoundLedger};

use crate::shared;

/// What the library promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The content of a block that was freed while it was open stays until it is closed, or reads
    /// as zeros with `release`.
    HeldContent,
    /// Opening a handle of a block that was freed fails as stale.
    StaleOpen,
    /// Memory that is current has the content of its block.
    CurrentContent,
    /// A live block of a live producer can be opened, and its mapping stays current.
    LiveBlock,
    /// When the last importer has closed or died, memory comes back.
    LeaseEnd,
    /// A process that has dropped everything has what it had at its start, and a run leaves nothing
    /// behind.
    NothingLeft,
    /// No process crashes.
    NoCrash,
    /// No process hangs.
    NoHang,
    /// A process of another user is refused.
    OtherUser,
    /// A live block can be freed, a pool works in a forked child, an error is one of those that are
    /// documented.
    Interface,
    /// Objects of a domain keep their content when their creator is gone.
    Domain,
    /// Messages, and views of memory that was handed over, have their content until they are
    /// dropped.
    Link,
    /// Two copies of the library in one process open each other's blocks.
    SecondCopy,
}

impl Promise {
    /// All of them.
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

impl fmt::Display for Promise {
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

/// Reports of one process that look at the ledgers of all processes, which takes a while each.
const FULL_REPORTS: u32 = 8;
/// Reports of one process that are printed.
const REPORTS: u32 = 40;

/// Reports that a promise is broken.
pub fn broken(promise: Promise, what: impl fmt::Display) {
    report(promise, &what, None);
}

/// Reports that a promise about a handle is broken.
pub fn broken_for(promise: Promise, handle: Option<Handle>, what: impl fmt::Display) {
    report(promise, &what, handle);
}

fn report(promise: Promise, what: &dyn fmt::Display, handle: Option<Handle>) {
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    shared::get().violations[promise as usize].fetch_add(1, Ordering::SeqCst);
    let reported = REPORTED.fetch_add(1, Ordering::Relaxed);
    if reported >= REPORTS {
        return;
    }
    let mut text = format!("hostile: VIOLATION of {promise}: {what}\n  reported by {}\n", this_thread());
    if let Some(handle) = handle {
        text.push_str(&describe_handle(&handle));
        if reported < FULL_REPORTS {
            text.push_str(&describe_slot(&handle));
            text.push_str(&describe_rows(&handle));
        }
    }
    print(&text);
}

/// Prints a text with one system call: a forked child may have inherited a locked standard error.
pub fn print(text: &str) {
    // SAFETY: the text has that many bytes. What is not printed is lost.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

fn this_thread() -> String {
    // SAFETY: the call has no conditions.
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

/// The slot of a handle in its producer's ledger.
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

/// The rows of the producer's lease table, with what they count of the handle's slot.
fn describe_rows(handle: &Handle) -> String {
    let Ok(search) = inspect::find() else { return "  rows: /proc cannot be read\n".to_owned() };
    let Some(found) = search.by_nonce(handle.nonce()) else {
        return "  rows: the ledger is gone\n".to_owned();
    };
    let rows = found.lease_rows(handle.slot());
    rows.iter().map(|row| format!("  {row:?}\n")).collect()
}
