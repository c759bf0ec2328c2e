//! `[log]` and `UMF_LOG`: umf's events, for operators.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::FormatFields as _;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use umf_os::output;

use crate::settings::{Log, LogLevel, LogOutput};

/// Sends events where the settings say, unless the application has a subscriber of its own, which then gets them.
pub(crate) fn start(log: &Log) {
    match &log.output {
        LogOutput::Stderr => install(log, |line| output::stderr().write_all(line)),
        LogOutput::Stdout => install(log, |line| output::stdout().write_all(line)),
        LogOutput::File(path) => match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => install(log, move |line| (&file as &File).write_all(line)),
            Err(error) => {
                // The operator asked for a log and would otherwise wait for it.
                // With a closed stderr there is nobody to tell.
                let _ = writeln!(
                    output::stderr(),
                    "umf: cannot write the log to {}: {error}; logging is off",
                    path.display()
                );
            }
        },
        LogOutput::Off => {}
    }
}

fn install(log: &Log, write: impl Fn(&[u8]) -> io::Result<()> + Send + Sync + 'static) {
    let level = match log.level {
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warning => Level::WARN,
        LogLevel::Error | LogLevel::Fatal => Level::ERROR,
    };
    let lines = Lines { level, timestamp: log.timestamp, pid: log.pid, write };
    // Refused if there is one already: the application's.
    let _ = tracing::subscriber::set_global_default(lines);
}

/// Writes each event as a line, at once and without a lock, which a forked child may find taken.
/// Uses no thread-local storage, which may be gone where a thread ends: `tracing_subscriber::fmt`
/// panics there.
struct Lines<W> {
    level: Level,
    timestamp: bool,
    pid: bool,
    write: W,
}

impl<W> Lines<W> {
    fn line(&self, event: &Event<'_>) -> Result<String, std::fmt::Error> {
        let mut line = String::new();
        let mut writer = Writer::new(&mut line);
        if self.timestamp {
            SystemTime.format_time(&mut writer)?;
            writer.write_char(' ')?;
        }
        if self.pid {
            write!(writer, "[{}] ", std::process::id())?;
        }
        write!(writer, "[umf] {:>5} ", event.metadata().level().as_str())?;
        DefaultFields::new().format_fields(writer.by_ref(), event)?;
        writer.write_char('\n')?;
        Ok(line)
    }
}

impl<W: Fn(&[u8]) -> io::Result<()> + Send + Sync + 'static> Subscriber for Lines<W> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn event(&self, event: &Event<'_>) {
        // What cannot be shown, or written, is left out: there is nobody to tell.
        if let Ok(line) = self.line(event) {
            let _ = (self.write)(line.as_bytes());
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
