//! Commands that act on the process itself: fork, exec, limits, credentials, fds, sockets.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::memory::ActorState;
use crate::{Answer, Failure, serve};

/// Whether a forked child continues after its parent has ended, until it is killed.
static LINGERS: AtomicBool = AtomicBool::new(false);

/// Shifts the later mappings of this process if the kernel does not randomize addresses, as in
/// guests of `tests/vm/run`. Otherwise equal blocks of two processes would have equal addresses,
/// and tests could not notice an address that is used in the wrong process.
pub(crate) fn shift_mappings() {
    let random = std::fs::read_to_string("/proc/sys/kernel/randomize_va_space");
    if random.is_ok_and(|random| random.trim() == "0") {
        let length = (std::process::id() as usize % 61 + 1) << 20;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    }
}

pub(crate) fn execute(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("ping", []) => Ok(String::new()),
        ("counts", []) => counts(),
        ("maps", [part]) => maps(part),
        ("fork", []) => fork(actor),
        ("reap", []) => reap(actor),
        ("linger", []) => {
            LINGERS.store(true, Ordering::Relaxed);
            Ok(String::new())
        }
        ("exec", []) => exec(),
        ("rlimit", [which, value]) => rlimit(which, value),
        ("setuid", [uid]) => set_uid(uid, uid),
        ("setuid", [uid, gid]) => set_uid(uid, gid),
        ("dumpable", [flag]) => dumpable(flag),
        ("replace-fd", [number, path]) => replace_fd(number, path),
        ("close-fd", [number]) => number.parse().map_err(Failure::from).and_then(|number: i32| {
            // SAFETY: none; the test checks what umf does when a program closes an fd of umf.
            check(unsafe { libc::close(number) })
        }),
        ("timer", [milliseconds]) => timer(milliseconds),
        ("connect", [name, count]) => connect(actor, name, count),
        ("bind", [name]) => bind(actor, name),
        ("take-fds", [left]) => take_fds(actor, left),
        ("give-fds-back", []) => {
            actor.taken.clear();
            Ok(String::new())
        }
        ("mount", [kind, target, options]) => mount(kind, target, options),
        ("mount-bind", [source, target]) => mount_bind(source, target),
        ("sleep", [milliseconds]) => milliseconds.parse().map_err(Failure::from).map(|milliseconds| {
            std::thread::sleep(Duration::from_millis(milliseconds));
            String::new()
        }),
        _ => return None,
    })
}

/// Closes mappings, domains and links, reaps the child and exits. Pools stay, as those in a
/// `static` do.
pub(crate) fn end(mut actor: ActorState) -> ! {
    actor.mappings.clear();
    actor.domains = crate::domain::Domains::default();
    actor.links = crate::link::Links::default();
    let _ = reap(&mut actor);
    std::process::exit(0)
}

/// Ends the calling thread alone, without running its destructors (`_exit(2)`).
pub(crate) fn leave_thread() -> ! {
    loop {
        // SAFETY: no other thread uses data of this one.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

fn check(result: i32) -> Answer {
    if result < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(result.to_string()) }
}

/// Answers with the numbers of fds, mappings and threads, and the resident memory in KiB.
fn counts() -> Answer {
    let fds = std::fs::read_dir("/proc/self/fd")?.count() - 1;
    let maps = std::fs::read_to_string("/proc/self/maps")?.lines().count();
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    let resident: u64 = resident.trim().trim_end_matches(" kB").parse()?;
    Ok(format!("fds={fds} maps={maps} threads={threads} rss={resident}"))
}

/// Answers with the lines of `/proc/self/maps` that contain `part`.
fn maps(part: &str) -> Answer {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let lines: Vec<&str> = maps.lines().filter(|line| line.contains(part)).collect();
    Ok(lines.join(" | "))
}

/// Forks a child that executes the commands with the prefix `child`.
fn fork(actor: &mut ActorState) -> Answer {
    reap(actor)?;
    let (stream, child_stream) = UnixStream::pair()?;
    stream.set_read_timeout(Some(Duration::from_secs(9)))?;
    // SAFETY: umf and the allocator have fork handlers, so that the child can use both.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(stream);
        // The child answers through the parent.
        for number in [0, 1] {
            // SAFETY: the child does not use stdin and stdout.
            unsafe { libc::close(number) };
        }
        actor.child = None;
        let input = child_stream.try_clone().unwrap();
        serve(actor, input, child_stream);
        while LINGERS.load(Ordering::Relaxed) {
            std::thread::park();
        }
        // SAFETY: ends the child without running exit handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    check(pid)?;
    actor.child = Some((pid, stream));
    Ok(pid.to_string())
}

pub(crate) fn forward_to_child(actor: &mut ActorState, command: &str) -> Answer {
    let Some((_, stream)) = &mut actor.child else { return Err(Failure::unknown(command)) };
    writeln!(stream, "{command}")?;
    let mut answer = Vec::new();
    while answer.last() != Some(&b'\n') {
        let mut bytes = [0; 65536];
        let count = match stream.read(&mut bytes) {
            Ok(0) => return Err(Failure::new("ChildEnded", format!("before it answered {command:?}"))),
            Ok(count) => count,
            Err(error) => return Err(Failure::new("ChildHangs", format!("{command:?}: {error}"))),
        };
        answer.extend_from_slice(&bytes[..count]);
    }
    let answer = String::from_utf8_lossy(&answer).trim_end().to_owned();
    match answer.split_once(' ').unwrap_or((&answer, "")) {
        ("err", rest) => {
            let (variant, message) = rest.split_once(' ').unwrap_or((rest, ""));
            Err(Failure::new(variant, message))
        }
        (_, rest) => Ok(rest.to_owned()),
    }
}

/// Ends the child, if there is one, and answers with its status.
fn reap(actor: &mut ActorState) -> Answer {
    let Some((pid, stream)) = actor.child.take() else { return Ok("none".to_owned()) };
    drop(stream);
    wait_for(pid)
}

/// Reaps a child and answers with its wait status.
///
/// # Errors
/// If the child does not end within 9 s. It is then killed.
pub(crate) fn wait_for(pid: i32) -> Answer {
    let mut status = 0;
    for _ in 0..9000 {
        // SAFETY: a child of this process; `status` is valid for the write.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            return Ok(status.to_string());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the child exists, since it was not reaped.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &raw mut status, 0);
    }
    Err(Failure::new("ChildHangs", format!("child {pid} does not end")))
}

/// Executes this program again, with the same pid and pipes.
fn exec() -> Answer {
    let program = CString::new(std::fs::read_link("/proc/self/exe")?.to_string_lossy().as_bytes()).unwrap();
    // The new program does not know the command, so the answer is sent first.
    std::io::stdout().write_all(b"ok \n")?;
    std::io::stdout().flush()?;
    let arguments = [program.as_ptr(), std::ptr::null()];
    // SAFETY: the path is a C string, and the list ends with null.
    unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
    Err(std::io::Error::last_os_error().into())
}

fn rlimit(which: &str, value: &str) -> Answer {
    let resource = match which {
        "nofile" => libc::RLIMIT_NOFILE,
        "fsize" => libc::RLIMIT_FSIZE,
        "as" => libc::RLIMIT_AS,
        _ => return Err(Failure::unknown(which)),
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for the write.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) })?;
    limit.rlim_cur = if value == "max" { limit.rlim_max } else { value.parse()? };
    // SAFETY: the structure is valid; the limits are this process's own.
    check(unsafe { libc::setrlimit(resource, &raw const limit) })?;
    // A write past the limit must return an error instead of sending a signal.
    // SAFETY: numbers only.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    Ok(String::new())
}

fn set_uid(uid: &str, gid: &str) -> Answer {
    let (uid, gid): (u32, u32) = (uid.parse()?, gid.parse()?);
    // SAFETY: numbers only.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresuid(uid, uid, uid) })
}

/// Interrupts system calls by a periodic signal, as profilers and MPI libraries do.
fn timer(milliseconds: &str) -> Answer {
    extern "C" fn nothing(_: i32) {}
    let tv_usec = milliseconds.parse::<i64>()? * 1000;
    // SAFETY: zeroes are a value of this plain structure: no flags, so no SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
    // SAFETY: the structure is valid and the handler does nothing.
    check(unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) })?;
    let interval = libc::timeval { tv_sec: 0, tv_usec };
    let times = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the structure is valid.
    check(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const times, std::ptr::null_mut()) })
}

fn dumpable(flag: &str) -> Answer {
    let flag: libc::c_ulong = flag.parse()?;
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, flag) })
}

/// Makes an fd number refer to another file, as if the program had closed an fd of umf by mistake.
fn replace_fd(number: &str, path: &str) -> Answer {
    let number: i32 = number.parse()?;
    let file = if path == "memfd" {
        // SAFETY: the name is a C string.
        check(unsafe { libc::memfd_create(c"other".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?
            .parse()?
    } else {
        let path = CString::new(path).unwrap();
        // SAFETY: a C string.
        unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
    };
    check(file)?;
    if path == "memfd" {
        // SAFETY: an fd of this process.
        check(unsafe { libc::ftruncate(file, 1 << 30) })?;
        // SAFETY: an fd of this process.
        check(unsafe { libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) })?;
    }
    // SAFETY: none; the test checks what umf does when a program replaces an fd of umf.
    check(unsafe { libc::dup2(file, number) })?;
    // SAFETY: an fd of this function, which was duplicated.
    check(unsafe { libc::close(file) })
}

/// Opens fds until `left` more are possible. `give-fds-back` closes them.
fn take_fds(actor: &mut ActorState, left: &str) -> Answer {
    let left: usize = left.parse()?;
    rlimit("nofile", "256")?;
    while let Ok(fd) = std::io::stderr().as_fd().try_clone_to_owned() {
        actor.taken.push(fd);
    }
    let kept = actor.taken.len().saturating_sub(left);
    actor.taken.truncate(kept);
    Ok(kept.to_string())
}

/// Returns the address of an abstract socket, and its length.
fn abstract_address(name: &str) -> (libc::sockaddr_un, u32) {
    // SAFETY: zeroes are a value of this plain structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (place, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    (address, u32::try_from(size_of::<libc::sa_family_t>() + 1 + name.len()).unwrap())
}

fn socket(actor: &mut ActorState) -> Result<i32, Failure> {
    // SAFETY: numbers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    check(socket)?;
    // SAFETY: the fd is new, and owned here alone.
    actor.taken.push(unsafe { OwnedFd::from_raw_fd(socket) });
    Ok(socket)
}

/// Connects to an abstract socket `count` times. The connections stay open until `give-fds-back`.
fn connect(actor: &mut ActorState, name: &str, count: &str) -> Answer {
    let (address, length) = abstract_address(name);
    for _ in 0..count.parse()? {
        let socket = socket(actor)?;
        // SAFETY: the structure is valid for `length` bytes.
        check(unsafe { libc::connect(socket, (&raw const address).cast(), length) })?;
    }
    Ok(String::new())
}

/// Listens on an abstract socket without accepting, until `give-fds-back`.
fn bind(actor: &mut ActorState, name: &str) -> Answer {
    let (address, length) = abstract_address(name);
    let socket = socket(actor)?;
    // SAFETY: the structure is valid for `length` bytes.
    check(unsafe { libc::bind(socket, (&raw const address).cast(), length) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::listen(socket, 8) })
}

/// Makes a folder appear at another path too.
fn mount_bind(source: &str, target: &str) -> Answer {
    let text = |text: &str| CString::new(text).unwrap();
    let (source, target) = (text(source), text(target));
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: C strings and numbers; only this process's mount namespace changes.
    check(unsafe { libc::mount(none, c"/".as_ptr(), none, private, none.cast()) })?;
    // SAFETY: C strings and numbers; only this process's mount namespace changes.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), none, libc::MS_BIND, none.cast()) })
}

fn mount(kind: &str, target: &str, options: &str) -> Answer {
    let text = |text: &str| CString::new(text).unwrap();
    let (kind, target, options) = (text(kind), text(target), text(options));
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: C strings and numbers; only this process's mount namespace changes.
    check(unsafe { libc::mount(none, c"/".as_ptr(), none, private, none.cast()) })?;
    // SAFETY: C strings and numbers; only this process's mount namespace changes.
    check(unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) })
}
