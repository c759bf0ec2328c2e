//! The log of a process that forks, and of threads that exit. The tests start themselves again as
//! these processes.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::cell::RefCell;
use std::process::{Command, Output};
use std::sync::mpsc;

use umf::Pool;

/// The environment variable that holds the task of a child process of a test.
const TASK: &str = "LOG_TASK";

/// Runs the test again in a child process that logs to standard error. Returns `None` in that
/// process.
fn alone(test: &str, task: &str, level: &str) -> Option<Output> {
    if std::env::var(TASK).is_ok() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(TASK, task).env("UMF_LOG", format!("level:{level};output:stderr;pid:yes"));
    command.env("UMF_POOL_DEFAULTS_TRACE", "2").env("UMF_POOL_DEFAULTS_LEAKS", "count");
    Some(command.output().unwrap())
}

fn text_of(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success(), "{}: {text}", output.status);
    text
}

#[test]
fn misspelled_variable_is_reported_once_unless_switched_off() {
    let test = "log::misspelled_variable_is_reported_once_unless_switched_off";
    if std::env::var(TASK).is_ok() {
        drop(Pool::private().unwrap());
        return;
    }
    for (variables, count) in [
        (&[][..], 1),
        (&[("UMF_LOG", "level:error;output:stderr")], 1),
        (&[("UMF_LOG", "level:warning;output:stderr")], 1),
        (&[("UMF_LOG_WARNINGS", "false")], 0),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(TASK, "create");
        command.env("UMF_IPC_EXCHANG", "socket").envs(variables.iter().copied());
        let text = text_of(&command.output().unwrap());
        assert_eq!(
            text.matches("UMF_IPC_EXCHANG is not one of umf's").count(),
            count,
            "{variables:?}: {text}"
        );
        assert_eq!(text.matches("did you mean UMF_IPC_EXCHANGE?").count(), count, "{variables:?}: {text}");
    }
}

#[test]
fn child_logs_if_forked_during_a_write_to_stderr() {
    let test = "log::child_logs_if_forked_during_a_write_to_stderr";
    if let Some(output) = alone(test, "fork", "debug") {
        let text = text_of(&output);
        assert_eq!(text.matches("DEBUG pool=\"private\" region=\"got\"").count(), 2, "{text}");
        return;
    }
    let (locked, when_locked) = mpsc::channel();
    let (over, when_over) = mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let _stderr = std::io::stderr().lock();
        locked.send(()).unwrap();
        when_over.recv().unwrap();
    });
    when_locked.recv().unwrap();
    let log = || drop(Pool::private().unwrap().allocate(100).unwrap());
    // SAFETY: the child runs code that is made for forked children, and ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the alarm ends this process if it waits for the lock; `_exit` ends it otherwise.
        unsafe {
            libc::alarm(30);
            log();
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    over.send(()).unwrap();
    writer.join().unwrap();
    assert_eq!(status, 0, "the child waits for a lock that its parent held");
    log();
}

thread_local! {
    static LAST: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

fn leaky() -> Pool {
    let pool = Pool::private().unwrap();
    std::mem::forget(pool.allocate(100));
    pool
}

#[test]
fn exiting_thread_can_log() {
    for task in ["caches", "last"] {
        if let Some(output) = alone("log::exiting_thread_can_log", task, "debug") {
            let text = text_of(&output);
            assert_eq!(text.contains("were never freed"), task == "last", "{text}");
            assert!(text.contains("region=\"got\""), "{text}");
        }
    }
    let work: fn(&Pool) = match std::env::var(TASK).as_deref() {
        // The exiting thread returns the blocks that it keeps.
        Ok("caches") => |pool| drop((0..2000).map(|_| pool.allocate(3000).unwrap()).collect::<Vec<_>>()),
        // The exiting thread drops the last handle of a pool.
        Ok("last") => |_| {
            LAST.set(Some(leaky()));
            // The thread has logged before.
            drop(leaky());
        },
        _ => return,
    };
    let pool = Pool::private().unwrap();
    for _ in 0..3 {
        let pool = pool.clone();
        std::thread::spawn(move || work(&pool)).join().unwrap();
    }
}
