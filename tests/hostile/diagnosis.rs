//! Reports of hangs and crashes.
//!
//! A process hangs if one of its threads reports no progress for
//! [`PATIENCE`], and the process was not waiting for a processor meanwhile.
//!
//! `/proc/<pid>/task/*/schedstat` has the time that a thread ran, and the time that it waited on a
//! run queue.
//!
//! A signal handler reports crashes, with a backtrace of gdb.

use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::checker::print;
use crate::pools::own_pid;

/// Time without progress after which a process is examined.
const PATIENCE: Duration = Duration::from_secs(25);

/// Nanoseconds that all threads of a process ran, and waited for a processor.
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

/// The last known progress of a thread or a process.
#[derive(Debug)]
pub struct Watch {
    progress: u64,
    since: Instant,
    times: Option<Times>,
}

impl Watch {
    /// Starts watching.
    pub fn new() -> Self {
        Self { progress: u64::MAX, since: Instant::now(), times: None }
    }

    /// Restarts the time without progress, since the process was stopped or the watcher did not
    /// run.
    pub fn restart(&mut self) {
        *self = Self { progress: self.progress, ..Self::new() };
    }

    /// Compares the progress of a process with the last one. Returns a description of the process
    /// if it hangs.
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
            // The process waits for a processor.
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

/// Describes what each thread of a process waits for, as far as this user can read it.
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
    // Adds backtraces if a debugger is installed. It stops the process for a moment.
    let program = ["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 20"].map(str::to_owned);
    if let Ok(output) = std::process::Command::new("gdb").args(program).output() {
        let frames = String::from_utf8_lossy(&output.stdout).into_owned();
        for line in frames.lines().filter(|line| line.starts_with('#') || line.starts_with("Thread")) {
            let _ = writeln!(text, "    {}", line.chars().take(160).collect::<String>());
        }
    }
    text
}

/// Maximum time of a report, in seconds.
const MAX_REPORT_S: u32 = 30;

/// Installs the handler for SIGSEGV, SIGBUS and SIGABRT. The signals still end the process.
pub fn install_crash_handler() {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        // SAFETY: zero is a value of every field.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = report_crash;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the action is complete, and its handler has the type that SA_SIGINFO requires.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Reports the first crash. Other threads that crash meanwhile wait until the process ends.
///
/// The handler's stack is small, so that a debugger prints the backtrace. The handler then resets
/// the action and returns, so that the instruction faults again and ends the process.
extern "C" fn report_crash(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    static REPORTING: AtomicBool = AtomicBool::new(false);
    if REPORTING.swap(true, Ordering::SeqCst) {
        loop {
            // SAFETY: only suspends this thread.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: sets an alarm, whose default action ends this process.
    unsafe { libc::alarm(MAX_REPORT_S) };
    // SAFETY: the kernel passes a description of the signal.
    let address = unsafe { (*info).si_addr() };
    // SAFETY: returns a number.
    let thread = unsafe { libc::gettid() };
    let pid = own_pid();
    print(&format!("hostile: CRASH: signal {signal} at {address:p}, pid {pid} thread {thread}\n"));
    let (pid, backtrace) = (format!("{pid}\0"), c"thread apply all bt 18");
    let arguments = [
        c"gdb".as_ptr(),
        c"-nx".as_ptr(),
        c"-batch".as_ptr(),
        c"-p".as_ptr(),
        pid.as_ptr().cast(),
        c"-ex".as_ptr(),
        backtrace.as_ptr(),
        std::ptr::null(),
    ];
    // SAFETY: the child makes system calls only, and its arguments end with a null pointer. The
    // parent waits for it.
    unsafe {
        // fork(3) would call the fork handlers of the library.
        let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t;
        if child == 0 {
            libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO);
            libc::execvp(arguments[0], arguments.as_ptr());
            libc::_exit(0);
        }
        // Attaching a debugger interrupts the call.
        while libc::waitpid(child, std::ptr::null_mut(), 0) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::signal(signal, libc::SIG_DFL);
    }
}
