//! Tells a process that hangs from one that the machine gives no processor time.
//!
//! A process hangs if one of its threads reports no progress for a long time, and the process does
//! not wait for a processor meanwhile. The verdict rests on `/proc/<pid>/task/*/schedstat`: time
//! that was run, and time that was waited on a run queue.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

/// No progress for this long is looked into.
const PATIENCE: Duration = Duration::from_secs(25);

/// Nanoseconds that all threads of a process have run, and have waited for a processor.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    run: u64,
    waited: u64,
}

impl Times {
    fn of(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.fold(Self::default(), |sum, task| {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let mut fields = text.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0));
            let (run, waited) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
            Self { run: sum.run + run, waited: sum.waited + waited }
        })
    }
}

/// What is known of the progress of one thread, or of one process.
#[derive(Debug)]
pub struct Watch {
    progress: u64,
    since: Instant,
    times: Option<Times>,
}

impl Watch {
    /// Begins to watch.
    pub fn new() -> Self {
        Self { progress: u64::MAX, since: Instant::now(), times: None }
    }

    /// Begins anew: the process was stopped, or the watcher itself did not run.
    pub fn restart(&mut self) {
        *self = Self { progress: self.progress, ..Self::new() };
    }

    /// Looks at the progress of a process. Returns a description of the process if it hangs.
    pub fn look(&mut self, pid: u32, progress: u64) -> Option<String> {
        if progress != self.progress {
            self.progress = progress;
            self.restart();
            return None;
        }
        let elapsed = self.since.elapsed();
        if elapsed < PATIENCE / 5 {
            return None;
        }
        let now = Times::of(pid);
        let begin = *self.times.get_or_insert(now);
        if elapsed < PATIENCE {
            return None;
        }
        let (run, waited) = (now.run.saturating_sub(begin.run), now.waited.saturating_sub(begin.waited));
        let watched = (PATIENCE / 5 * 4).as_nanos() as u64;
        if waited > watched / 4 && run < watched / 4 {
            // It waits for a processor.
            self.restart();
            return None;
        }
        self.restart();
        Some(format!(
            "no progress for {elapsed:?}, in which it ran for {} ms and waited for a processor for {} ms\n{}",
            run / 1_000_000,
            waited / 1_000_000,
            describe(pid)
        ))
    }
}

/// What each thread of a process waits in, as far as this user may look.
pub fn describe(pid: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let file = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stat = file("stat");
        let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next()).unwrap_or('?');
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "  thread {} ({}): state {state}, wchan {}, syscall {}, stack {}",
            task.file_name().to_string_lossy(),
            file("comm").trim(),
            file("wchan"),
            file("syscall").trim(),
            file("stack")
                .lines()
                .take(6)
                .map(|line| line.trim_start_matches("[<0>] "))
                .collect::<Vec<_>>()
                .join(" < "),
        );
    }
    // Backtraces, where there is a debugger. It stops the process for a moment.
    let program = ["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 20"].map(str::to_owned);
    if let Ok(output) = std::process::Command::new("gdb").args(program).output() {
        let frames = String::from_utf8_lossy(&output.stdout).into_owned();
        for line in frames.lines().filter(|line| line.starts_with('#') || line.starts_with("Thread")) {
            let _ = writeln!(text, "    {}", line.chars().take(160).collect::<String>());
        }
    }
    text
}
