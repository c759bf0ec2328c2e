//! The log. `UMF_LOG` and the control tree configure it. It is off until one of them sets an
//! output.

use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, Ordering};
use std::io::Write as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use umf::settings::LogLevel as Level;
use umf_os::environment::variable;
use umf_os::output;
use umf_sync::Lock;

use crate::boundary::{Failure, Outcome};

/// Returns the level with this number in the C interface.
pub(crate) fn level_numbered(number: i32) -> Option<Level> {
    Level::ALL.get(usize::try_from(number).ok()?).copied()
}

const fn level_of(level: tracing::Level) -> Level {
    match level {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warning,
        tracing::Level::INFO => Level::Info,
        _ => Level::Debug,
    }
}

const fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Debug => LevelFilter::DEBUG,
        Level::Info => LevelFilter::INFO,
        Level::Warning => LevelFilter::WARN,
        Level::Error => LevelFilter::ERROR,
        // This library never aborts the program.
        Level::Fatal => LevelFilter::OFF,
    }
}

/// The format and the levels of the log.
#[derive(Clone, Copy)]
pub(crate) struct LogFormat {
    pub(crate) level: Level,
    pub(crate) flush: Level,
    pub(crate) timestamp: bool,
    pub(crate) pid: bool,
}

struct LogState {
    form: LogFormat,
    output: Output,
}

enum Output {
    Off,
    Stdout,
    Stderr,
    File { name: Arc<str>, file: std::io::BufWriter<std::fs::File> },
}

/// No memory is allocated or freed under the lock: the program's allocator may be a pool of this
/// library, and an event may come from it.
static STATE: Lock<LogState> = Lock::new(LogState {
    form: LogFormat { level: Level::Error, flush: Level::Error, timestamp: false, pid: false },
    output: Output::Off,
});

/// Reads or changes the format.
pub(crate) fn change<T>(change: impl FnOnce(&mut LogFormat) -> T) -> T {
    let changed = change(&mut STATE.lock().form);
    tracing::callsite::rebuild_interest_cache();
    changed
}

/// Returns the output: `stdout`, `stderr`, a path, or `disabled`.
pub(crate) fn output_name() -> String {
    let name = match &STATE.lock().output {
        Output::Off => Ok("disabled"),
        Output::Stdout => Ok("stdout"),
        Output::Stderr => Ok("stderr"),
        Output::File { name, .. } => Err(Arc::clone(name)),
    };
    name.map_or_else(|name| name.to_string(), str::to_owned)
}

/// Sets the output; `None` turns the log off.
pub(crate) fn set_output(name: Option<&str>) -> Outcome<()> {
    let output = match name {
        None | Some("disabled") => Output::Off,
        Some("stdout") => Output::Stdout,
        Some("stderr") => Output::Stderr,
        Some(name) => {
            let open = std::fs::OpenOptions::new().create(true).append(true).open(name);
            let file = open.map_err(|_| Failure::argument("the file for the log cannot be opened"))?;
            Output::File { name: name.into(), file: std::io::BufWriter::new(file) }
        }
    };
    let before = core::mem::replace(&mut STATE.lock().output, output);
    drop(before);
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

/// Configures the log from `UMF_LOG`: `level:debug;flush:info;output:stderr;timestamp:yes;pid:no`.
pub(crate) fn start() {
    // Fails if a subscriber is set, which then is this one from an earlier start.
    let _ = tracing::subscriber::set_global_default(Log);
    let Some(text) = variable("UMF_LOG").and_then(|text| text.into_string().ok()) else { return };
    match LogSettings::parse(&text) {
        Some(settings) if settings.output.is_some() => settings.apply(),
        _ if text.is_empty() => {}
        _ => {
            let _ = writeln!(
                output::stderr(),
                "umf: UMF_LOG={text:?} is not understood; the log is off; valid is parts separated by `;`, of which \
                 output is needed: output:stdout|stderr|file,<path>, \
                 level:debug|info|warning|error|fatal, flush:<level>, timestamp:yes|no, pid:yes|no"
            );
        }
    }
}

/// Converts an error of creating the process's exporter or importer. If the settings are wrong, the
/// first such error of the process is a line on standard error, unless the log has an output.
pub(crate) fn report_settings(error: umf::Error) -> Failure {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let failure = Failure::from(error);
    let is_off = matches!(STATE.lock().output, Output::Off);
    if failure.is_of_settings() && is_off && !IS_REPORTED.swap(true, Ordering::Relaxed) {
        // A closed standard error is no error.
        let _ = writeln!(
            output::stderr(),
            "umf: {failure}; making and opening IPC handles fails until this is corrected"
        );
    }
    failure
}

/// Flushes the output.
pub(crate) fn flush() {
    if let Output::File { file, .. } = &mut STATE.lock().output {
        let _ = file.flush();
    }
}

#[derive(Default, Debug, PartialEq)]
struct LogSettings {
    output: Option<String>,
    level: Option<Level>,
    flush: Option<Level>,
    timestamp: bool,
    pid: bool,
}

impl LogSettings {
    fn parse(text: &str) -> Option<Self> {
        let mut settings = Self::default();
        for (name, value) in umf::settings::log_parts(text)? {
            let truth = || match value {
                "yes" => Some(true),
                "no" => Some(false),
                _ => None,
            };
            match name {
                "level" => settings.level = Some(value.parse().ok()?),
                "flush" => settings.flush = Some(value.parse().ok()?),
                "timestamp" => settings.timestamp = truth()?,
                "pid" => settings.pid = truth()?,
                "output" => {
                    let place = match value {
                        "stdout" | "stderr" => value,
                        _ => value.strip_prefix("file,")?,
                    };
                    settings.output = Some(place.to_owned());
                }
                _ => return None,
            }
        }
        Some(settings)
    }

    fn apply(self) {
        // Without an output the log stays off.
        let Some(place) = self.output else { return };
        change(|form| {
            form.level = self.level.unwrap_or(Level::Error);
            form.flush = self.flush.unwrap_or(Level::Error);
            form.timestamp = self.timestamp;
            form.pid = self.pid;
        });
        if let Err(failure) = set_output(Some(&place)) {
            let _ = writeln!(output::stderr(), "umf: UMF_LOG: {place}: {failure}; the log is off");
        }
    }
}

/// Subscriber for the events of this library, which has its own copy of `tracing`.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= threshold()
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(threshold())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = level_of(*event.metadata().level());
        let mut words = EventText(String::new());
        event.record(&mut words);
        let form = STATE.lock().form;
        if level < form.level {
            return;
        }
        let line = form.line(level, &words.0);
        STATE.lock().output.write(&line, level >= form.flush);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn threshold() -> LevelFilter {
    let state = STATE.lock();
    if matches!(state.output, Output::Off) { LevelFilter::OFF } else { filter(state.form.level) }
}

impl LogFormat {
    fn line(&self, level: Level, words: &str) -> String {
        let mut line = String::new();
        if self.timestamp {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let _ = write!(line, "[{}.{:03}] ", now.as_secs(), now.subsec_millis());
        }
        if self.pid {
            let _ = write!(line, "[{}] ", std::process::id());
        }
        let _ = writeln!(line, "[{} UMF]{words}", level.as_str().to_uppercase());
        line
    }
}

impl Output {
    fn write(&mut self, line: &str, flush: bool) {
        // A closed output is ignored.
        let _ = match self {
            Self::Off => Ok(()),
            Self::Stdout => output::stdout().write_all(line.as_bytes()),
            Self::Stderr => output::stderr().write_all(line.as_bytes()),
            Self::File { file, .. } => {
                file.write_all(line.as_bytes()).and_then(|()| if flush { file.flush() } else { Ok(()) })
            }
        };
    }
}

/// The fields of an event as text.
struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_the_originals() {
        let settings =
            LogSettings::parse("level:debug;flush:info;output:file,/tmp/a:b;timestamp:yes;pid:no").unwrap();
        assert_eq!(settings.output.as_deref(), Some("/tmp/a:b"));
        assert_eq!((settings.level, settings.flush), (Some(Level::Debug), Some(Level::Info)));
        assert!(settings.timestamp && !settings.pid);
        for bad in ["level:loud", "output:printer", "debug", "x:y", "pid:maybe"] {
            assert_eq!(LogSettings::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_child_may_log_though_a_thread_of_its_parent_was_logging() {
        let (to, from) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            change(|_| {
                to.send(()).unwrap();
                // The fork below most likely happens during this sleep.
                std::thread::sleep(std::time::Duration::from_millis(100));
            });
        });
        from.recv().unwrap();
        // SAFETY: the child only takes a lock that is valid after a fork, and ends below.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: sets a timer that ends the child if it blocks on the lock, and ends the
            // child.
            unsafe {
                libc::alarm(30);
                threshold();
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child forked above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child waits for a lock of its parent's");
        other.join().unwrap();
    }

    #[test]
    fn lines_show_what_is_asked_for() {
        let mut form = LogFormat { level: Level::Error, flush: Level::Error, timestamp: false, pid: false };
        assert_eq!(form.line(Level::Error, " it broke"), "[ERROR UMF] it broke\n");
        form.pid = true;
        assert!(
            form.line(Level::Warning, " x").starts_with(&format!("[{}] [WARNING UMF]", std::process::id()))
        );
    }

    #[test]
    fn levels_have_the_numbers_of_the_header() {
        for (number, level) in Level::ALL.into_iter().enumerate() {
            assert_eq!(level_numbered(i32::try_from(number).unwrap()), Some(level));
            assert_eq!(level as usize, number);
        }
        assert_eq!(level_numbered(5), None);
        assert_eq!(level_numbered(-1), None);
    }
}
