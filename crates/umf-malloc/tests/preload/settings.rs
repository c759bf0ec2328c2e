//! `UMF_PROXY`, and what shared memory leaves among the program's files.

use std::process::Command;

use crate::library::{has_room, is_there, library, run};

fn shell(text: &str, settings: &str) -> crate::library::Said {
    run(Command::new("bash").args(["-c", text]), Some(settings))
}

#[test]
fn what_is_no_setting_is_told_once_and_left_out() {
    let said = shell("echo $((1 + 1))", "colour=red;page.disposition=shared-fd;size.threshold=many");
    assert_eq!((said.status, said.output.as_str()), (0, "2\n"));
    let lines: Vec<_> = said.errors.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("'colour=red' is ignored") && lines[1].contains("'size.threshold=many' is ignored")
    );
}

#[test]
fn a_named_file_is_there_as_long_as_its_process() {
    if !has_room("a_named_file_is_there_as_long_as_its_process") {
        return;
    }
    let text = r#"ls /dev/shm/umf_proxy_lib_shm_pid_$$ && exec bash -c 'ls /dev/shm/umf_proxy_lib_shm_pid_$$; echo $$'"#;
    let said = shell(text, "page.disposition=shared-shm");
    let pid = said.output.lines().last().unwrap();
    let name = format!("/dev/shm/umf_proxy_lib_shm_pid_{pid}");
    assert_eq!(
        (said.status, said.output.as_str(), said.errors.as_str()),
        (0, &*format!("{name}\n{name}\n{pid}\n"), "")
    );
    assert!(!std::path::Path::new(&name).exists());
}

/// A program that closes all files, or puts another one in the place of the library's, goes on with private memory, and its
/// own file is not touched.
#[test]
fn the_file_may_be_closed_or_replaced() {
    let test = "the_file_may_be_closed_or_replaced";
    if !is_there(test, "python3") {
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
        let said = run(Command::new("python3").args(["-c", &text]), Some("page.disposition=shared-fd"));
        assert_eq!((said.status, said.output.as_str()), (0, "2\n"), "{}", said.errors);
        assert_eq!(
            said.errors,
            "umf_proxy: the program closed the file of its memory; from here on memory is private\n"
        );
        assert!(std::fs::read(&kept).unwrap() == vec![b'k'; 3 << 20]);
    }
}

/// Where a process may have few addresses, memory is the next allocator's, or the pool's.
#[test]
fn few_addresses_are_enough() {
    let mut told = Vec::new();
    for megabytes in (24..76).step_by(2) {
        let text = format!("(ulimit -v {}; exec ls /etc/hostname)", megabytes << 10);
        let said = shell(&text, "");
        assert_eq!((said.status, said.output.as_str()), (0, "/etc/hostname\n"), "{megabytes} MB: {said:?}");
        told.push(!said.errors.is_empty());
    }
    assert!(told.is_sorted_by(|few, many| few >= many), "{told:?}");
    assert!(told[0] && !told[told.len() - 1], "{told:?}");
}

/// Where there is no room far behind, the file is not in the place of a stream that the program was started without.
#[test]
fn the_file_is_no_standard_stream() {
    let text = r"ulimit -n 64; exec bash -c '(readlink /proc/$$/fd/1 || echo none) >&2' >&-";
    let said = shell(text, "page.disposition=shared-fd");
    assert_eq!((said.status, said.errors.as_str()), (0, "none\n"));
}

/// What another process has open is not taken from it: it may be one of another pid namespace.
#[test]
fn a_name_in_use_stays_with_who_uses_it() {
    if !has_room("a_name_in_use_stays_with_who_uses_it") {
        return;
    }
    let preload = format!(
        "exec env LD_PRELOAD={} UMF_PROXY=page.disposition=shared-shm bash -c 'cd /dev/shm; ls -s umf_proxy_lib_shm_pid_$$*; echo $$'",
        library().display()
    );
    for (open, names) in [("exec 5<\"$name\"", &["", "_1"][..]), (":", &[""])] {
        let text = format!("name=/dev/shm/umf_proxy_lib_shm_pid_$$; : > \"$name\"; {open}; {preload}");
        let said = run(Command::new("bash").args(["-c", &text]), None);
        let (list, pid) = said.output.trim_end().rsplit_once('\n').unwrap();
        let path = format!("/dev/shm/umf_proxy_lib_shm_pid_{pid}");
        let found: Vec<_> = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(
            found.iter().map(|line| line[1].replace(&path[9..], "")).collect::<Vec<_>>(),
            names,
            "{said:?}"
        );
        // The one that was there is as it was: empty.
        assert_eq!(found[0][0] == "0", names.len() == 2, "{said:?}");
        assert_ne!(found[names.len() - 1][0], "0", "{said:?}");
        assert_eq!(std::path::Path::new(&path).exists(), names.len() == 2);
        assert!(!std::path::Path::new(&format!("{path}_1")).exists());
        let _ = std::fs::remove_file(path);
    }
}

/// A child of which no copy of the heap could be made would go on in its parent's.
#[test]
fn a_child_without_a_copy_ends() {
    let test = "a_child_without_a_copy_ends";
    if !is_there(test, "python3") {
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
    let said = run(Command::new("python3").args(["-c", text]), Some("page.disposition=shared-fd"));
    assert_eq!((said.status, said.output.as_str()), (0, "1\n7\n"), "{said:?}");
    assert!(
        said.errors.starts_with("umf_proxy: a forked child ends, because there is no memory for a copy of "),
        "{said:?}"
    );
    assert_eq!(said.errors.lines().count(), 1);
}
