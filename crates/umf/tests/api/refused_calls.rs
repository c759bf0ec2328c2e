//! System calls that a seccomp filter refuses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::alone::ran_alone;
use std::io::{Read, Write};

use umf::{Pool, PoolBuilder, open};

/// Makes the system call `call` fail with `errno` in this thread and in the threads that it starts.
/// With `second`, the call fails only if that is its second argument.
fn refuse(call: libc::c_long, second: Option<i32>, errno: i32) {
    let instruction =
        |code: u32, k: u32, (jt, jf): (u8, u8)| libc::sock_filter { code: code as u16, jt, jf, k };
    let answer = |k| instruction(libc::BPF_RET | libc::BPF_K, k, (0, 0));
    let load = |at| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, (0, 0));
    let skip_unless =
        |value: u32, count| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, (0, count));
    // In the data of the filter, the number of the call is at byte 0, and the arguments start at
    // byte 16.
    let number = u32::try_from(call).unwrap();
    let mut filter = match second {
        Some(second) => {
            vec![load(0), skip_unless(number, 3), load(24), skip_unless(second.unsigned_abs(), 1)]
        }
        None => vec![load(0), skip_unless(number, 1)],
    };
    filter.push(answer(libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()));
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: u16::try_from(filter.len()).unwrap(), filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid during the call. It changes the calls of this thread only.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn pools_work_without_optional_system_calls() {
    if ran_alone("refused_calls::pools_work_without_optional_system_calls") {
        return;
    }
    for errno in [libc::EPERM, libc::ENOSYS] {
        for call in [libc::SYS_sysinfo, libc::SYS_prlimit64, libc::SYS_geteuid, libc::SYS_statx] {
            let work = move || {
                refuse(call, None, errno);
                let pool = Pool::shared().unwrap();
                let block = pool.allocate(100_000).unwrap();
                block.write(0, &[7; 100]).unwrap();
                let mapping = open(&block.handle().unwrap()).unwrap();
                let mut bytes = [0; 100];
                mapping.read(0, &mut bytes).unwrap();
                assert_eq!(bytes, [7; 100]);
                let ahead = PoolBuilder::default().build().unwrap();
                ahead.reserve(8 << 20).unwrap();
            };
            std::thread::spawn(work).join().unwrap_or_else(|_| panic!("call {call} is refused with {errno}"));
        }
    }
}

/// Opens `handle` in a forked child in which the system call fails. Returns "open" or the error.
fn opened_without(handle: &umf::Handle, call: libc::c_long, second: Option<i32>) -> String {
    let (mut answer, mut to) = std::io::pipe().unwrap();
    // SAFETY: the child runs code that is made for forked children, and ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        refuse(call, second, libc::EPERM);
        let text = open(handle).map_or_else(|error| error.to_string(), |_| "open".to_owned());
        let _ = to.write_all(text.as_bytes());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    drop(to);
    let mut text = String::new();
    answer.read_to_string(&mut text).unwrap();
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child);
    text
}

#[test]
fn error_names_the_denied_system_call_and_its_cause() {
    if ran_alone("refused_calls::error_names_the_denied_system_call_and_its_cause") {
        return;
    }
    let pool = Pool::shared().unwrap();
    let block = pool.allocate(100_000).unwrap();
    let handle = block.handle().unwrap();
    let text = opened_without(&handle, libc::SYS_fcntl, Some(libc::F_GET_SEALS));
    assert!(text.contains("F_GET_SEALS") && text.contains("seccomp"), "{text}");
    let text = opened_without(&handle, libc::SYS_madvise, None);
    assert!(text == "open" || text.contains("madvise") && text.contains("seccomp"), "{text}");
}
