//! `[log]` and `UMF_LOG`: umf's events, for operators.

use std::fs::OpenOptions;
use std::io::{self, Write as _};

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use umf_config::{Log, LogLevel, LogOutput};

/// Sends events where the settings say, unless the application has a subscriber of its own, which then gets them.
pub(crate) fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warning => Level::WARN,
        _ => Level::ERROR,
    };
    match &log.output {
        LogOutput::Stderr => install(log, level, io::stderr),
        LogOutput::Stdout => install(log, level, io::stdout),
        LogOutput::File(path) => match OpenOptions::new().create(true).append(true).open(path) {
            // Without a lock, which a forked child may find taken: each event is one write at the end.
            Ok(file) => install(log, level, file),
            Err(error) => {
                // The operator asked for a log and would otherwise wait for it.
                // With a closed stderr there is nobody to tell.
                let _ = writeln!(
                    io::stderr(),
                    "umf: cannot write the log to {}: {error}; logging is off",
                    path.display()
                );
            }
        },
        _ => {}
    }
}

fn install(log: &Log, level: Level, writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) {
    let prefix = Prefix { timestamp: log.timestamp, pid: log.pid };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .with_timer(prefix)
        .with_writer(writer)
        .finish();
    // Refused if there is one already: the application's.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// What stands in front of each line.
struct Prefix {
    timestamp: bool,
    pid: bool,
}

impl FormatTime for Prefix {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        if self.timestamp {
            SystemTime.format_time(writer)?;
            writer.write_char(' ')?;
        }
        if self.pid {
            write!(writer, "[{}] ", std::process::id())?;
        }
        writer.write_str("[umf]")
    }
}
