//! A signal handler that forks while its process, which has one thread, exports and opens handles:
//! the child's side of the fork does not block. Runs without libtest, which has threads.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use umf_core::{Access, Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_pool_proxy::ProxyPool;
use umf_provider_host::{HostImport, HostProvider};

const FORKS: u32 = 600;

static DONE: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);

/// Waits for a child, and kills it after `timeout`, with its process group if `has_group`. Returns
/// its wait status.
fn wait(pid: i32, timeout: Duration, has_group: bool) -> i32 {
    let begin = Instant::now();
    let mut status = 0;
    // SAFETY: asks for a child of this process.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > timeout {
            // SAFETY: a child of this process that was not waited for.
            unsafe { libc::kill(if has_group { -pid } else { pid }, libc::SIGKILL) };
        }
        // SAFETY: sleeps.
        unsafe { libc::usleep(200) };
    }
    status
}

extern "C" fn on_alarm(_: i32) {
    // SAFETY: the child ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    if pid > 0 && wait(pid, Duration::from_secs(20), false) != 0 {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }
    DONE.fetch_add(1, Ordering::Relaxed);
    arm();
}

/// Arms the timer for one signal, after a delay that differs each time.
fn arm() {
    let after = 20 + i64::from(DONE.load(Ordering::Relaxed) * 17 % 301);
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: after },
    };
    // SAFETY: `timer` is valid.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, core::ptr::null_mut()) };
}

fn run() -> Result<(), Box<dyn Error>> {
    // Isolated, so that each block is a region with a mapping of its own.
    let provider = HostProvider::builder().visibility(Visibility::Shared).isolate(true).build()?;
    let pool = ProxyPool::new(provider)?;
    let exporter = Exporter::new(ExporterSettings::default())?;
    let importer = Importer::builder().import(Arc::new(HostImport::new())).max_opened_handles(1).build()?;
    let mut handles = Vec::new();
    for _ in 0..4 {
        let address = pool.allocate(Layout::new(4096, 16)?)?;
        // SAFETY: the test does not access the memory.
        handles.push(unsafe { exporter.handle(address) }?);
    }
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        println!("umf-skip: forks_in_handlers: there are {threads} threads");
        return Ok(());
    }
    // SAFETY: the handler is a function of this type, and the structure is one of numbers.
    unsafe {
        let mut action = core::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_alarm as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &raw const action, core::ptr::null_mut());
    }
    arm();
    let mut turn = 0;
    while DONE.load(Ordering::Relaxed) < FORKS && FAILED.load(Ordering::Relaxed) == 0 {
        drop(importer.open_bytes(handles[turn % 4].as_bytes(), Access::ReadWrite)?);
        if turn % 16 == 0 {
            importer.evict_idle();
        }
        turn += 1;
    }
    match FAILED.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => {
            Err(format!("a child did not end in order, after {} forks", DONE.load(Ordering::Relaxed)).into())
        }
    }
}

fn main() {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: this process and its children are a group of their own from here on.
        unsafe { libc::setpgid(0, 0) };
        let result = run();
        println!("{} forks in the handler: {result:?}", DONE.load(Ordering::Relaxed));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert_eq!(wait(pid, Duration::from_secs(120), true), 0);
    println!(
        "test forks_in_handlers ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
    );
}
