//! `UMF_PROXY`, and the files of heaps in shared memory.

use std::process::Command;

use crate::library::{has_room, is_installed, library, run};

fn shell(text: &str, settings: &str) -> crate::library::Outcome {
    run(Command::new("bash").args(["-c", text]), Some(settings))
}

#[test]
fn invalid_settings_are_reported_once_and_ignored() {
    let outcome = shell("echo $((1 + 1))", "colour=red;page.disposition=shared-fd;size.threshold=many");
    assert_eq!((outcome.status, outcome.output.as_str()), (0, "2\n"));
    let lines: Vec<_> = outcome.errors.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("'colour=red' is ignored") && lines[1].contains("'size.threshold=many' is ignored")
    );
}

#[test]
fn named_file_exists_until_its_process_ends() {
    if !has_room("named_file_exists_until_its_process_ends") {
        return;
    }
    let text = r#"ls /dev/shm/umf_proxy_lib_shm_pid_$$ && exec bash -c 'ls /dev/shm/umf_proxy_lib_shm_pid_$$; echo $$'"#;
    let outcome = shell(text, "page.disposition=shared-shm");
    let pid = outcome.output.lines().last().unwrap();
    let name = format!("/dev/shm/umf_proxy_lib_shm_pid_{pid}");
    assert_eq!(
        (outcome.status, outcome.output.as_str(), outcome.errors.as_str()),
        (0, &*format!("{name}\n{name}\n{pid}\n"), "")
    );
    assert!(!std::path::Path::new(&name).exists());
}

/// A program that closes all files, or puts another one in the place of the library's, goes on with
/// private memory, and its own file is not touched.
#[test]
fn closed_or_replaced_descriptor_makes_the_heap_private() {
    let test = "closed_or_replaced_descriptor_makes_the_heap_private";
    if !is_installed(test, "python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    std::fs::write(&kept, vec![b'k'; 3 << 20]).unwrap();
    let text = format!(
        "import os\n\
         memory = [n for n in map(int, os.listdir('/proc/self/fd')) if n >= 900 and 'memfd:umf' in os.readlink(f'/proc/self/fd/{{n}}')]\n\
         assert memory, os.listdir('/proc/self/fd')\n\
         before = [bytearray(b'a' * (12 << 20)) for _ in range(4)] + [str(n) for n in range(100000)]\n\
         if CLOSE: os.closerange(3, 1024)\n\
         else: os.dup2(os.open({kept:?}, os.O_RDWR), memory[0])\n\
         after = [bytearray(12 << 20) for _ in range(8)] + [str(n) for n in range(300000)]\n\
         assert before[0][-1] == 97 and after[7][-1] == 0\n\
         del before, after\n\
         pid = os.fork()\n\
         if pid == 0: os._exit(len([str(n) for n in range(100000)]) // 50000)\n\
         print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    );
    for close in ["True", "False"] {
        let text = text.replace("CLOSE", close);
        let outcome = run(Command::new("python3").args(["-c", &text]), Some("page.disposition=shared-fd"));
        assert_eq!((outcome.status, outcome.output.as_str()), (0, "2\n"), "{}", outcome.errors);
        assert_eq!(
            outcome.errors,
            "umf_proxy: cannot allocate shared memory: the program closed its file; memory is private from now on\n"
        );
        assert!(std::fs::read(&kept).unwrap() == vec![b'k'; 3 << 20]);
    }
}

/// With a small address space, the next allocator serves the program; with a larger one, the pool.
#[test]
fn programs_run_within_any_address_space_limit() {
    let mut reported = Vec::new();
    for megabytes in (24..76).step_by(2) {
        let text = format!("(ulimit -v {}; exec ls /etc/hostname)", megabytes << 10);
        let outcome = shell(&text, "");
        assert_eq!(
            (outcome.status, outcome.output.as_str()),
            (0, "/etc/hostname\n"),
            "{megabytes} MB: {outcome:?}"
        );
        reported.push(!outcome.errors.is_empty());
    }
    assert!(reported.is_sorted_by(|few, many| few >= many), "{reported:?}");
    assert!(reported[0] && !reported[reported.len() - 1], "{reported:?}");
}

/// Where there is no room far behind, the file is not in the place of a stream that the program was
/// started without.
#[test]
fn file_does_not_become_a_standard_stream() {
    let text = r"ulimit -n 64; exec bash -c '(readlink /proc/$$/fd/1 || echo none) >&2' >&-";
    let outcome = shell(text, "page.disposition=shared-fd");
    assert_eq!((outcome.status, outcome.errors.as_str()), (0, "none\n"));
}

/// A file that another process has open is not unlinked: the process may be one of another pid
/// namespace.
#[test]
fn name_in_use_is_left_and_numbered() {
    if !has_room("name_in_use_is_left_and_numbered") {
        return;
    }
    let preload = format!(
        "exec env LD_PRELOAD={} UMF_PROXY=page.disposition=shared-shm bash -c 'cd /dev/shm; ls -s umf_proxy_lib_shm_pid_$$*; echo $$'",
        library().display()
    );
    for (open, names) in [("exec 5<\"$name\"", &["", "_1"][..]), (":", &[""])] {
        let text = format!("name=/dev/shm/umf_proxy_lib_shm_pid_$$; : > \"$name\"; {open}; {preload}");
        let outcome = run(Command::new("bash").args(["-c", &text]), None);
        let (list, pid) = outcome.output.trim_end().rsplit_once('\n').unwrap();
        let path = format!("/dev/shm/umf_proxy_lib_shm_pid_{pid}");
        let found: Vec<_> = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(
            found.iter().map(|line| line[1].replace(&path[9..], "")).collect::<Vec<_>>(),
            names,
            "{outcome:?}"
        );
        // The file that existed before is unchanged: empty.
        assert_eq!(found[0][0] == "0", names.len() == 2, "{outcome:?}");
        assert_ne!(found[names.len() - 1][0], "0", "{outcome:?}");
        assert_eq!(std::path::Path::new(&path).exists(), names.len() == 2);
        assert!(!std::path::Path::new(&format!("{path}_1")).exists());
        let _ = std::fs::remove_file(path);
    }
}

/// A child for which the heap could not be copied would share its parent's heap.
#[test]
fn child_without_a_copy_of_the_heap_ends() {
    let test = "child_without_a_copy_of_the_heap_ends";
    if !is_installed(test, "python3") {
        return;
    }
    let text = "import os, resource\n\
                kept = [bytearray(b'k' * (4 << 20)) for _ in range(8)]\n\
                size = int(open('/proc/self/statm').read().split()[0]) * 4096\n\
                before = resource.getrlimit(resource.RLIMIT_AS)\n\
                resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), before[1]))\n\
                pid = os.fork()\n\
                if pid == 0: os._exit(7)\n\
                resource.setrlimit(resource.RLIMIT_AS, before)\n\
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n\
                pid = os.fork()\n\
                if pid == 0: os._exit(7)\n\
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n";
    let outcome = run(Command::new("python3").args(["-c", text]), Some("page.disposition=shared-fd"));
    assert_eq!((outcome.status, outcome.output.as_str()), (0, "1\n7\n"), "{outcome:?}");
    assert!(
        outcome
            .errors
            .starts_with("umf_proxy: a forked child ends, because there is no memory for a copy of "),
        "{outcome:?}"
    );
    assert_eq!(outcome.errors.lines().count(), 1);
}
