//! `umf top` in a pseudoterminal, which it restores on every exit path.

// Clippy does not treat functions that tests share as tests.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
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

impl Terminal {
    fn start(arguments: &[&str]) -> Terminal {
        let size = libc::winsize { ws_row: 40, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut master, mut slave) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: `master`, `slave` and `size` are valid; the name and `termios` arguments may be
        // null.
        let opened =
            unsafe { libc::openpty(&raw mut master, &raw mut slave, none, none.cast(), &raw const size) };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: `openpty` has just created both fds, and no other value owns them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        // SAFETY: sets a flag of an fd of this process.
        assert_eq!(unsafe { libc::fcntl(master.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
        command.arg("top").args(arguments).env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
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
        // SAFETY: signals a child of this test.
        assert_eq!(unsafe { libc::kill(i32::try_from(terminal.child.id()).unwrap(), signal) }, 0);
        let status = terminal.await_end();
        assert!(status.success() && status.signal().is_none(), "{status}");
        terminal.assert_restored();
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
