//! Memory shared between processes: IPC handles and fds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod driver;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;

use driver::{User, child, close, error_code, handle, open, run_in_child};
use level_zero_sys::*;

/// Before 1.6 the client closes the fd of a handle: the driver has no `zeMemPutIpcHandle`.
#[test]
fn old_driver_leaves_handle_fd_to_client() {
    run_in_child("old_driver_leaves_handle_fd_to_client", &[("ZE_SOFT_API", "1.5")], || {
        let user = User::direct();
        let address = user.allocate(4096).unwrap();
        let (one, two) = (handle(&user, address).unwrap(), handle(&user, address).unwrap());
        let fd = |bytes: &ze_ipc_mem_handle_t| {
            let first: [u8; 4] = std::array::from_fn(|at| bytes.data[at]);
            i32::from_le_bytes(first)
        };
        assert_ne!(fd(&one), fd(&two));
        // SAFETY: arguments as the specification requires.
        let put = unsafe { user.api.zeMemPutIpcHandle(user.context, one) };
        assert_eq!(put, Err(Failure::Absent { function: "zeMemPutIpcHandle" }));
        // SAFETY: the client owns these fds.
        unsafe { drop((OwnedFd::from_raw_fd(fd(&one)), OwnedFd::from_raw_fd(fd(&two)))) };
        assert!(user.function(c"zeMemPutIpcHandle").is_err());
        assert!(user.function(c"zeMemGetIpcHandle").is_ok());
        user.free(address).unwrap();
    });
}

/// `ZE_SOFT_OPEN`: opening a handle twice returns one address, or two.
#[test]
fn handle_opened_twice_has_one_or_two_addresses() {
    for (setting, is_once) in [("once", true), ("each", false)] {
        run_in_child(
            "handle_opened_twice_has_one_or_two_addresses",
            &[("ZE_SOFT_OPEN", setting), ("ZE_SOFT_TEST", setting)],
            || {
                let is_once = std::env::var("ZE_SOFT_TEST").map_or(is_once, |setting| setting == "once");
                let user = User::direct();
                let address = user.allocate(4096).unwrap();
                user.write(address, &[3; 8]).unwrap();
                let bytes = handle(&user, address).unwrap();
                let (one, two) = (open(&user, bytes).unwrap(), open(&user, bytes).unwrap());
                assert_eq!(one == two, is_once);
                assert_eq!(user.read(two, 8).unwrap(), [3; 8]);
                assert_eq!(error_code(user.free(one)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
                close(&user, one).unwrap();
                assert_eq!(close(&user, two).is_err(), is_once);
                // SAFETY: arguments as the specification requires.
                unsafe { user.api.zeMemPutIpcHandle(user.context, bytes) }.unwrap();
                user.free(address).unwrap();
            },
        );
    }
}

#[test]
fn exported_fds_can_be_imported() {
    run_in_child("exported_fds_can_be_imported", &[], || {
        let user = User::direct();
        let export = ze_external_memory_export_desc_t {
            flags: ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD,
            ..Default::default()
        };
        let desc = ze_device_mem_alloc_desc_t { pNext: (&raw const export).cast(), ..Default::default() };
        let address = user.allocate_as(user.devices[0], 4096, &desc).unwrap();
        user.write(address, b"exported").unwrap();
        let ask = |address: usize, flags| {
            let mut fd = ze_external_memory_export_fd_t { flags, fd: -1, ..Default::default() };
            let mut properties =
                ze_memory_allocation_properties_t { pNext: (&raw mut fd).cast(), ..Default::default() };
            let pointer = std::ptr::without_provenance(address);
            // SAFETY: arguments as the specification requires.
            unsafe {
                let device = std::ptr::null_mut();
                user.api.zeMemGetAllocProperties(user.context, pointer, &raw mut properties, device)?;
            }
            Ok(fd.fd)
        };
        // SAFETY: the client owns the exported fd.
        let fd =
            unsafe { OwnedFd::from_raw_fd(ask(address, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD).unwrap()) };
        assert_eq!(
            error_code(ask(address, ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF)),
            ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION
        );
        let plain = user.allocate(4096).unwrap();
        assert_eq!(
            error_code(ask(plain, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD)),
            ZE_RESULT_ERROR_INVALID_ARGUMENT
        );

        let import = |fd, flags, size| {
            let import = ze_external_memory_import_fd_t { flags, fd, ..Default::default() };
            let desc = ze_device_mem_alloc_desc_t { pNext: (&raw const import).cast(), ..Default::default() };
            user.allocate_as(user.devices[0], size, &desc)
        };
        let number = fd.as_raw_fd();
        let imported = import(number, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD, 4096).unwrap();
        drop(fd);
        assert_eq!(user.read(imported, 8).unwrap(), b"exported");
        for (fd, flags, size) in [
            (number, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD, 4096),
            (-1, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD, 4096),
            (0, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD, 4096),
            (i32::MAX, ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF, 4096),
        ] {
            assert_eq!(error_code(import(fd, flags, size)), ZE_RESULT_ERROR_INVALID_ARGUMENT, "{fd}");
        }
        for address in [address, plain, imported] {
            user.free(address).unwrap();
        }
        assert_eq!(user.count(c"fds"), 0);
    });
}

/// The specification's functions to take an fd from a handle, and to make a handle from an fd.
#[test]
fn handle_from_fd_round_trips() {
    for ipc in ["classic", "opaque-pidfd"] {
        run_in_child("handle_from_fd_round_trips", &[("ZE_SOFT_IPC", ipc)], || {
            let user = User::direct();
            let address = user.allocate(4096).unwrap();
            user.write(address, b"by an fd").unwrap();
            let bytes = handle(&user, address).unwrap();
            let mut fd = u64::MAX;
            let mut made = ze_ipc_mem_handle_t::default();
            // SAFETY: arguments as the specification requires.
            unsafe {
                let api = &user.api;
                api.zeMemGetFileDescriptorFromIpcHandleExp(user.context, bytes, &raw mut fd).unwrap();
                let number = i32::try_from(fd).unwrap();
                let copy = std::os::fd::BorrowedFd::borrow_raw(number).try_clone_to_owned().unwrap();
                let number = u64::try_from(copy.as_raw_fd()).unwrap();
                api.zeMemGetIpcHandleFromFileDescriptorExp(user.context, number, &raw mut made).unwrap();
                let opened = open(&user, made).unwrap();
                assert_eq!(user.read(opened, 8).unwrap(), b"by an fd");
                close(&user, opened).unwrap();
                let nothing =
                    api.zeMemGetIpcHandleFromFileDescriptorExp(user.context, u64::MAX, &raw mut made);
                assert_eq!(error_code(nothing), ZE_RESULT_ERROR_INVALID_ARGUMENT);
                api.zeMemPutIpcHandle(user.context, bytes).unwrap();
            }
            user.free(address).unwrap();
        });
    }
}

/// Clients send the fd of a classic handle alone. Of the handle that they open, only the first four
/// bytes are defined.
#[test]
fn classic_handle_opens_by_its_fd_alone() {
    run_in_child("classic_handle_opens_by_its_fd_alone", &[("ZE_SOFT_IPC", "classic")], || {
        let user = User::direct();
        let address = user.allocate(4096).unwrap();
        user.write(address, b"the fd").unwrap();
        let bytes = handle(&user, address).unwrap();
        for other in [0, 1, 2, 0xa5, 0xff] {
            let mut received = ze_ipc_mem_handle_t { data: [other; ZE_MAX_IPC_HANDLE_SIZE] };
            received.data[..4].copy_from_slice(&bytes.data[..4]);
            let opened = open(&user, received).unwrap();
            assert_eq!(user.properties(opened).r#type, ZE_MEMORY_TYPE_DEVICE);
            assert_eq!(user.read(opened, 6).unwrap(), b"the fd");
            close(&user, opened).unwrap();
        }
        // SAFETY: arguments as the specification requires.
        unsafe { user.api.zeMemPutIpcHandle(user.context, bytes) }.unwrap();
        user.free(address).unwrap();
    });
}

/// Any process and fd can stand in an opaque handle.
#[test]
fn opaque_handle_with_wild_numbers_is_refused() {
    for ipc in ["opaque-pidfd", "opaque-socket"] {
        run_in_child("opaque_handle_with_wild_numbers_is_refused", &[("ZE_SOFT_IPC", ipc)], || {
            let user = User::direct();
            let address = user.allocate(4096).unwrap();
            let good = handle(&user, address).unwrap();
            for pid in [i32::MIN, -1, 0, 1, i32::MAX] {
                for fd in [i32::MIN, -1, i32::MAX] {
                    let mut bad = good;
                    bad.data[..4].copy_from_slice(&fd.to_le_bytes());
                    bad.data[20..24].copy_from_slice(&pid.to_le_bytes());
                    bad.data[24..28].copy_from_slice(&fd.to_le_bytes());
                    let refused = open(&user, bad).unwrap_err().result();
                    assert_eq!(refused, ZE_RESULT_ERROR_INVALID_ARGUMENT, "fd {fd} of process {pid}");
                }
            }
            close(&user, open(&user, good).unwrap()).unwrap();
        });
    }
}

/// Imported memory keeps its content after the exporter was killed. Opening its handle again fails.
#[test]
fn import_survives_killed_exporter() {
    let test = "import_survives_killed_exporter";
    for ipc in ["opaque-pidfd", "opaque-socket"] {
        let settings = [("ZE_SOFT_IPC", ipc), ("ZE_SOFT_OPEN", "each")];
        run_in_child(test, &settings, || match std::env::var_os("ZE_SOFT_TEST") {
            Some(_) => {
                let user = User::direct();
                let address = user.allocate(4096).unwrap();
                user.write(address, b"outlives").unwrap();
                let bytes = handle(&user, address).unwrap();
                let hexadecimal: String = bytes.data.iter().map(|byte| format!("{byte:02x}")).collect();
                println!("handle {hexadecimal}");
                // Waits until it is killed, or until the test has ended.
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
            }
            None => import_from_killed_process(test, &settings),
        });
    }
}

fn import_from_killed_process(test: &str, settings: &[(&str, &str)]) {
    let mut exporter = child(test, settings);
    exporter.env("ZE_SOFT_TEST", "exporter").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut exporter = exporter.spawn().unwrap();
    let lines = BufReader::new(exporter.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.into_iter().find_map(|line| Some(line.split_once("handle ")?.1.to_owned())).unwrap();
    let mut bytes = ze_ipc_mem_handle_t::default();
    for (at, byte) in bytes.data.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&line[at * 2..at * 2 + 2], 16).unwrap();
    }
    let user = User::direct();
    let opened = open(&user, bytes).unwrap();
    assert_eq!(user.read(opened, 8).unwrap(), b"outlives");
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    assert_eq!(user.read(opened, 8).unwrap(), b"outlives");
    user.write(opened, b"its").unwrap();
    assert_eq!(error_code(open(&user, bytes)), ZE_RESULT_ERROR_INVALID_ARGUMENT);
    close(&user, opened).unwrap();
    assert_eq!(user.count(c"allocations"), 0);
}

/// Without free fds, allocations and exports fail. Afterwards existing memory works as before.
#[test]
fn process_without_fds_gets_errors_and_recovers() {
    run_in_child("process_without_fds_gets_errors_and_recovers", &[("ZE_SOFT_IPC", "opaque-socket")], || {
        let user = User::direct();
        let address = user.allocate(4096).unwrap();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads and writes the limit of this process.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: limit.rlim_max };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none), 0);
        }
        assert_eq!(error_code(user.allocate(4096)), ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
        assert_eq!(error_code(handle(&user, address)), ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
        user.write(address, b"goes on").unwrap();
        // SAFETY: as above.
        unsafe { assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0) };
        let bytes = handle(&user, address).unwrap();
        let opened = open(&user, bytes).unwrap();
        assert_eq!(user.read(opened, 7).unwrap(), b"goes on");
        close(&user, opened).unwrap();
        user.free(address).unwrap();
        assert_eq!(user.count(c"fds"), 0);
    });
}
