//! `umf top` in a pseudoterminal, which it restores on every exit path; and `umf ps --watch`.

// Clippy does not treat functions that tests share as tests.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// `umf top` in a pseudoterminal of its own.
struct Terminal {
    child: Child,
    master: File,
    /// The child's side. Kept open so that its state can be read after the child has exited.
    slave: OwnedFd,
    before: libc::termios,
    shown: Vec<u8>,
}

fn settings(fd: &impl AsRawFd) -> libc::termios {
    // SAFETY: all-zero bytes are a valid `termios`.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `settings` is valid for writes.
    assert_eq!(unsafe { libc::tcgetattr(fd.as_raw_fd(), &raw mut settings) }, 0);
    settings
}

fn send(child: &Child, signal: libc::c_int) {
    // SAFETY: signals a child of this test.
    assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) }, 0);
}

impl Terminal {
    fn start(arguments: &[&str]) -> Terminal {
        Terminal::start_with(arguments, &[])
    }

    fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Terminal {
        let size = libc::winsize { ws_row: 40, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        // Both are closed in children, of other tests too: else a child holds its terminal open.
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: creates an fd.
        let master = unsafe { libc::posix_openpt(flags) };
        assert!(master >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: `posix_openpt` has just created the fd, and no other value owns it.
        let master = unsafe { File::from_raw_fd(master) };
        // SAFETY: changes a pseudoterminal of this process, and creates an fd.
        let slave = unsafe {
            assert_eq!(libc::unlockpt(master.as_raw_fd()), 0);
            libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags)
        };
        assert!(slave >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call has just created the fd, and no other value owns it.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        // SAFETY: `size` is valid for reads.
        assert_eq!(unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
        // SAFETY: sets a flag of an fd of this process.
        assert_eq!(unsafe { libc::fcntl(master.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
        command.arg("top").args(arguments).env("TERM", "xterm").envs(variables.iter().copied());
        command.stdin(end()).stdout(end()).stderr(end());
        let before = settings(&slave);
        let child = command.spawn().unwrap();
        Terminal { child, master, slave, before, shown: Vec::new() }
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = self.master.read(&mut bytes) {
            self.shown.extend_from_slice(&bytes[..count]);
        }
    }

    fn shows(&self, text: &str) -> bool {
        self.shown.windows(text.len()).any(|part| part == text.as_bytes())
    }

    fn await_text(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        while !self.shows(text) {
            assert!(Instant::now() < end, "no {text:?} in {} bytes", self.shown.len());
            std::thread::sleep(Duration::from_millis(5));
            self.read();
        }
    }

    fn await_end(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            // Keeps the output drained, so that the child never blocks on it.
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                self.read();
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asserts that the terminal is restored: alternate screen left, line discipline unchanged.
    fn assert_restored(&self) {
        assert!(self.shows("\u{1b}[?1049h") && self.shows("\u{1b}[?1049l"), "the alternate screen");
        let now = settings(&self.slave);
        let flags = |it: &libc::termios| (it.c_iflag, it.c_oflag, it.c_lflag);
        assert_eq!(flags(&now), flags(&self.before), "the line discipline");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn q_and_ctrl_c_quit() {
    for key in ["q", "\u{3}"] {
        let mut terminal = Terminal::start(&["--interval", "0.1"]);
        // Blanks are not drawn, so the screen contains single words.
        terminal.await_text("processes,");
        assert_ne!(settings(&terminal.slave).c_lflag, terminal.before.c_lflag, "keys come one by one");
        terminal.master.write_all(b"\x1b[B\x1b[A").unwrap();
        terminal.master.write_all(key.as_bytes()).unwrap();
        let status = terminal.await_end();
        assert!(status.success(), "{status}");
        terminal.assert_restored();
    }
}

#[test]
fn signals_quit_and_restore_terminal() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut terminal = Terminal::start(&["--interval", "3600"]);
        // Blanks are not drawn, so the screen contains single words.
        terminal.await_text("processes,");
        send(&terminal.child, signal);
        let status = terminal.await_end();
        assert!(status.success() && status.signal().is_none(), "{status}");
        terminal.assert_restored();
    }
}

#[test]
fn signal_in_escape_sequence_quits() {
    let mut terminal = Terminal::start(&["--interval", "3600"]);
    terminal.await_text("processes,");
    // The beginning of a key, after which a reader could wait for the rest.
    terminal.master.write_all(b"\x1b[").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    send(&terminal.child, libc::SIGTERM);
    let status = terminal.await_end();
    assert!(status.success() && status.signal().is_none(), "{status}");
    terminal.assert_restored();
}

#[test]
fn closed_terminal_ends_top() {
    let mut terminal = Terminal::start(&["--interval", "3600"]);
    terminal.await_text("processes,");
    // Hangs up. The terminal does not control the child, which thus gets no signal.
    terminal.master = File::open("/dev/null").unwrap();
    let status = terminal.await_end();
    assert_eq!(status.code(), Some(1), "{status}");
}

#[test]
fn no_colour_without_wish() {
    let mut terminal = Terminal::start_with(&["--interval", "0.1"], &[("NO_COLOR", "1")]);
    terminal.await_text("processes,");
    terminal.master.write_all(b"q").unwrap();
    assert!(terminal.await_end().success());
    for colour in 31..=33 {
        assert!(!terminal.shows(&format!("[{colour}m")) && !terminal.shows(&format!(";{colour}m")));
    }
}

/// Starts `umf ps --watch`, and returns it with the lines that it prints.
fn watching() -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
    command.args(["ps", "--watch", "0.1"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// Returns whether a line is a time stamp such as `2026-11-26T10:16:07Z`.
fn is_time_stamp(line: &str) -> bool {
    line.len() == 20 && line.ends_with('Z') && line.as_bytes()[10] == b'T' && line.starts_with("20")
}

#[test]
fn watched_table_is_printed_again_until_signal() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let (child, lines) = watching();
        let mut stamps = 0;
        for line in lines.lines() {
            let line = line.unwrap();
            assert!(!line.contains('\u{1b}'), "{line:?}");
            stamps += u32::from(is_time_stamp(&line));
            if stamps == 3 {
                stamps += 1;
                send(&child, signal);
            }
        }
        assert!(stamps >= 4, "{stamps}");
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn signal_ends_watch_whose_output_is_not_read() {
    let (child, lines) = watching();
    let size = 4096;
    // SAFETY: sets the size of a pipe of this process.
    assert!(unsafe { libc::fcntl(lines.get_ref().as_raw_fd(), libc::F_SETPIPE_SZ, size) } >= size);
    let unread = || {
        let mut count = 0;
        // SAFETY: `count` is valid for writes.
        assert_eq!(unsafe { libc::ioctl(lines.get_ref().as_raw_fd(), libc::FIONREAD, &raw mut count) }, 0);
        count
    };
    // No more comes once the pipe is full.
    let (end, mut before) = (Instant::now() + Duration::from_secs(60), (0, Instant::now()));
    while before.1.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(20));
        if unread() != before.0 {
            before = (unread(), Instant::now());
        }
        assert!(Instant::now() < end, "the pipe is not full: {}", before.0);
    }
    send(&child, libc::SIGTERM);
    // Its pipe stays open until it has ended.
    let (mut child, end) = (child, Instant::now() + Duration::from_secs(20));
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
    drop(lines);
}

#[test]
fn watch_ends_when_output_is_closed() {
    let (child, mut lines) = watching();
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert!(is_time_stamp(first.trim_end()), "{first:?}");
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn watch_has_default_and_refuses_json() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
    let mut child = command.args(["ps", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(is_time_stamp(first.trim_end()), "{first:?}");
    assert!(child.wait().unwrap().success());
    for arguments in [&["ps", "--watch", "--json"][..], &["ps", "--watch", "0"], &["ps", "--watch", "x"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_umf")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn without_terminal_prints_view_once() {
    for arguments in [&["top", "--once"][..], &["top"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_umf")).args(arguments).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.starts_with("umf top: "), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    for interval in ["0", "-1", "nan", "inf", "1e9", "x"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
        let output = command.args(["top", "--once", "--interval", interval]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{interval}");
    }
}
