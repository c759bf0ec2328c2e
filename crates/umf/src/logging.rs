//! The section `[log]` and `UMF_LOG`: a `tracing` subscriber for programs that have none.

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

/// Installs a subscriber that writes events to the configured output. Has no effect if the
/// application has installed a subscriber.
pub(crate) fn start(log: &Log) {
    match &log.output {
        LogOutput::Stderr => install(log, |line| output::stderr().write_all(line)),
        LogOutput::Stdout => install(log, |line| output::stdout().write_all(line)),
        LogOutput::File(path) => match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => install(log, move |line| (&file as &File).write_all(line)),
            Err(error) => {
                // The operator expects a log. A closed stderr is no error.
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
    let writer = LineWriter { level, timestamp: log.timestamp, pid: log.pid, write };
    // Fails if the application has installed a subscriber.
    let _ = tracing::subscriber::set_global_default(writer);
}

/// A subscriber that writes each event as a line, unbuffered.
///
/// It has no lock, because a forked child could find it taken. It has no thread-local storage,
/// because an exiting thread may log after its destruction; `tracing_subscriber::fmt` panics then.
struct LineWriter<W> {
    level: Level,
    timestamp: bool,
    pid: bool,
    write: W,
}

impl<W> LineWriter<W> {
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

impl<W: Fn(&[u8]) -> io::Result<()> + Send + Sync + 'static> Subscriber for LineWriter<W> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn event(&self, event: &Event<'_>) {
        // A failed write cannot be reported: the log is where errors go.
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
