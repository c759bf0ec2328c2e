//! Counters of what an endpoint has carried, by which a user sees that umf carried it.
//!
//! If the environment variable `FI_UMF_COUNTERS` names a folder, each endpoint writes a file
//! `umf-PID-NUMBER.txt` there when it is closed: lines with a name, a number of messages or
//! transfers, and their bytes. (libfabric names the variables of providers so.)

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use umf_link::{Carried, Engine, LinkStatistics};

/// Writes the counters of an endpoint, if the environment asks for it.
pub(crate) fn write(statistics: &LinkStatistics) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let folder = umf_os::environment::variable("FI_UMF_COUNTERS");
    let Some(folder) = folder.filter(|folder| !folder.is_empty()) else { return };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(&folder).join(format!("umf-{}-{number}.txt", std::process::id()));
    if let Err(error) = std::fs::write(&path, text(statistics)) {
        tracing::warn!(%error, path = %path.display(), "cannot write the counters of FI_UMF_COUNTERS");
    }
}

fn text(statistics: &LinkStatistics) -> String {
    let mut text = String::new();
    let mut line = |name: &str, carried: Carried| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {} {}", carried.messages, carried.bytes);
    };
    line("sent", statistics.sent);
    for engine in Engine::ALL {
        line(&format!("received.{engine}"), statistics.received_by(engine));
    }
    line("put", statistics.put);
    line("got", statistics.got);
    line("served", statistics.served);
    line("unexpected", statistics.unexpected);
    text
}
