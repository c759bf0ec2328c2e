//! Says where a worker crashed, before the signal ends it. Needs gdb for a backtrace.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::checker::print;
use crate::pools::own_pid;

/// Seconds that a report may take.
const LONGEST_REPORT_S: u32 = 30;

/// Has this process report SIGSEGV, SIGBUS and SIGABRT with a backtrace. The signals end it as they
/// would otherwise.
pub fn install() {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        // SAFETY: zero is a value of every field.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = report;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the action is complete, and its handler has the type that SA_SIGINFO asks for.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Reports the first crash. Other threads that crash meanwhile wait until the process ends. The
/// handler then resets the action and returns, so that the instruction faults again and ends the
/// process. A debugger looks at the stack, since the handler's own is small.
extern "C" fn report(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    static REPORTING: AtomicBool = AtomicBool::new(false);
    if REPORTING.swap(true, Ordering::SeqCst) {
        loop {
            // SAFETY: the call has no conditions.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: sets an alarm, whose default action ends this process.
    unsafe { libc::alarm(LONGEST_REPORT_S) };
    // SAFETY: the kernel passes a description of the signal.
    let address = unsafe { (*info).si_addr() };
    // SAFETY: the call has no conditions.
    let thread = unsafe { libc::gettid() };
    let pid = own_pid();
    print(&format!("hostile: CRASH: signal {signal} at {address:p}, pid {pid} thread {thread}\n"));
    let (pid, count) = (format!("{pid}\0"), c"thread apply all bt 18");
    let arguments = [
        c"gdb".as_ptr(),
        c"-nx".as_ptr(),
        c"-batch".as_ptr(),
        c"-p".as_ptr(),
        pid.as_ptr().cast(),
        c"-ex".as_ptr(),
        count.as_ptr(),
        std::ptr::null(),
    ];
    // SAFETY: the child makes system calls only, and its arguments end with a null pointer. The
    // parent waits for it.
    unsafe {
        // Not fork(3), which would call the library's handlers.
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
