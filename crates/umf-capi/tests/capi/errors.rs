//! The text of a thread's last error, and wrong settings.

use crate::installed::installed;
use crate::programs::{With, alone_with, compile, has, start};

#[test]
fn last_error_has_the_text_of_the_call_that_failed() {
    let test = "last_error_has_the_text_of_the_call_that_failed";
    let with = With { flags: vec!["-Wextra".into()], ..With::default() };
    let Some(lines) = alone_with(test, "last_error", &["all"], &with) else { return };
    let private = "private memory has no IPC handles; set the visibility to UMF_MEM_MAP_SHARED";
    for line in [
        "at first: \"\"",
        "native: 1000 success",
        "umfGetIPCHandle(block, &handle, &size) = 3",
        &format!("last: umfGetIPCHandle: {private}"),
        &format!("native: -1 {private}"),
        "umfPoolMalloc(pool, (size_t)1 << 60) != NULL = 0",
        "other thread: \"\"",
        "umfOpenIPCHandle(handler, handle, &memory) = 3",
        "native: 1001 memory allocation failed",
        "umfrsIPCHandleFromBytes(\"short\", 5, &handle) = 3",
        "umfrsIPCHandleFromBytes(zeros, 256, &handle) = 3",
        "umfrsIPCHandleFromBytes(zeros, 264, &handle) = 3",
        "umfrsIPCHandleFromBytes(NULL, 256, &handle) = 3",
        "umfrsIPCHandleFromBytes(zeros, 256, NULL) = 3",
        "umfrsLastErrorText() != NULL && strstr(umfrsLastErrorText(), \"umfPoolFree: \") != NULL = 1",
    ] {
        has(&lines, line);
    }
    for part in [
        "last: umfPoolMalloc: out of memory",
        // The reason of the function inside, and the name of the one that the program called.
        "last: umfMemoryProviderAlloc: an alignment must divide the page size",
        "last: umfOpenIPCHandle: stale handle: ",
        "native: -2 stale handle: ",
        "last: umfPoolMalloc: the function of the pool returned NULL",
        "last: umfrsIPCHandleFromBytes: cannot make an IPC handle: the size is of no form of handle; pass",
        "last: umfrsIPCHandleFromBytes: not the text of a handle",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(part)), "{part}\nnot in {lines:#?}");
    }
}

/// The call that needs the settings fails, its native error has the reason, and a line on standard
/// error has it once.
#[test]
fn wrong_setting_fails_the_export_and_is_reported() {
    let test = "wrong_setting_fails_the_export_and_is_reported";
    let Some(installed) = installed(test) else { return };
    let program = compile(installed, "last_error", &With::default());
    let reason = "UMF_IPC_LIMIT: ipc.limit = \"sfot\": not valid; valid is ";
    for log in ["", "output:stderr"] {
        let variables = vec![("UMF_IPC_LIMIT", "sfot".into()), ("UMF_LOG", log.into())];
        let output = start(installed, &program, &["shared"], &With { variables, ..With::default() });
        let (lines, error) = (crate::programs::said(&output), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{lines:#?}\n{error}");
        let failed =
            lines.iter().filter(|line| *line == "umfGetIPCHandle(block, &handle, &size) = 2").count();
        assert_eq!(failed, 2, "{lines:#?}");
        for part in [format!("last: umfGetIPCHandle: {reason}"), format!("native: -1 {reason}")] {
            assert!(lines.iter().any(|line| line.starts_with(&part)), "{part}\nnot in {lines:#?}");
        }
        // Memory that is not shared needs no settings.
        has(&lines, "block != NULL = 1");
        let reported = error.lines().filter(|line| line.starts_with(&format!("umf: {reason}"))).count();
        assert_eq!(reported, usize::from(log.is_empty()), "{error}");
        assert_eq!(error.contains("[ERROR UMF]"), !log.is_empty(), "{error}");
    }
    std::fs::remove_file(program).unwrap();
}

/// The log of this library takes the errors of each call, and one line reports a `UMF_LOG` that
/// turns it off.
#[test]
fn first_call_starts_the_log() {
    let test = "first_call_starts_the_log";
    let Some(installed) = installed(test) else { return };
    let program = compile(installed, "last_error", &With::default());
    let not_a_folder = "output:file,/dev/null/log";
    for (log, logged, reported) in [
        ("output:stderr", true, 0),
        ("output:stderr;level:loud", false, 1),
        ("level:debug", false, 1),
        (not_a_folder, false, 1),
        ("", false, 0),
    ] {
        let variables = vec![("UMF_LOG", log.into())];
        let output = start(installed, &program, &["first"], &With { variables, ..With::default() });
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        assert_eq!(error.contains("[ERROR UMF] umfGetIPCHandle: "), logged, "{log}: {error}");
        // The variable of this test program is a warning, too.
        let lines = error.lines().filter(|line| line.starts_with("umf: ") && !line.contains("UMF_LIBRARY"));
        assert_eq!(lines.count(), reported, "{log}: {error}");
        assert!(!error.contains(" ERROR umf"), "{log}: {error}");
    }
    std::fs::remove_file(program).unwrap();
}
