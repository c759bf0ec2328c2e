//! Programs that every Debian has print the same with the library and without.

use std::path::Path;
use std::process::Command;

use crate::library::{Outcome, is_installed, library, modes, run};

/// Runs a shell script in a new folder.
fn script(text: &str, settings: Option<&str>) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.arg("-c").arg(text).current_dir(folder.path()).env("HOME", folder.path());
    run(&mut command, settings)
}

fn same(test: &str, needs: &[&str], text: &str, modes: &[&str]) {
    if !needs.iter().chain(&["bash"]).all(|program| is_installed(test, program)) {
        return;
    }
    let without = script(text, None);
    assert_eq!(without.status, 0, "{}", without.errors);
    assert!(!without.output.is_empty());
    for mode in modes {
        assert_eq!(script(text, Some(mode)), without, "{mode}");
    }
}

#[test]
fn shell_and_tools_print_the_same() {
    let text = r#"
        set -e
        for n in $(seq 1 40); do x="$x $(echo $n | sed s/1/one/)"; done; echo $x
        f() { local -A m; for n in {1..2000}; do m[k$n]=$((n * n)); done; echo ${#m[@]} ${m[k77]}; }; f
        exec 3>numbers; seq 1 30000 >&3; exec 3>&-
        sort -R --random-source=numbers numbers | sort --parallel=4 -S 1M -n | tail -3
        awk '{ s[$1 % 100] = s[$1 % 100] $1 } END { for (k = 0; k < 100; k += 9) print k, length(s[k]) }' numbers
        gzip -c numbers | gzip -dc | cmp - numbers && wc -c < numbers
        (sleep 0.01; echo late) & wait; cat <(echo substituted)
        trap 'echo trapped' USR1; kill -USR1 $$; ls -d /usr /etc
        tar cf - numbers | tar tf -
        bash -c 'exec bash -c "exec echo after exec"'
    "#;
    let test = "shell_and_tools_print_the_same";
    same(test, &["sort", "awk", "gzip", "tar"], text, &modes(test));
}

#[test]
fn python_with_threads_and_processes_prints_the_same() {
    let text = r#"
python3 - <<'END'
import concurrent.futures, json, multiprocessing, os, re, subprocess, sys, threading
def work(n):
    table = {str(i): [i] * (i % 50) for i in range(n)}
    return len(json.loads(json.dumps(table))) + sum(len(re.findall("1+", key)) for key in table)
if __name__ == "__main__":
    threads = [threading.Thread(target=work, args=(2000 + n,)) for n in range(6)]
    [thread.start() for thread in threads]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, [1000, 2000, 3000]))
    [thread.join() for thread in threads]
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        print(list(executor.map(work, [500, 600, 700])))
    print(subprocess.run([sys.executable, "-c", "print('x' * 10)"], capture_output=True).stdout)
    text = ""
    for n in range(10000):
        text += "line %d\n" % n
    print(len(text), len(bytearray(64 << 20)))
    for n in range(5):
        pid = os.fork()
        if pid == 0:
            work(500)
            os._exit(n)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
    "#;
    let test = "python_with_threads_and_processes_prints_the_same";
    same(test, &["python3"], text, &modes(test));
}

#[test]
fn perl_git_and_sqlite_print_the_same() {
    let text = r"
        perl -e 'my %h; $h{$_ % 997} .= chr(65 + $_ % 26) for 1..60000; print join(q(,), map { length $h{$_} } 1..20), qq(\n);
            print scalar(reverse(sort(qw(c a b)))), qq(\n); if (my $p = fork) { waitpid $p, 0; print $? >> 8, qq(\n) } else { exit 7 }'
    ";
    let test = "perl_git_and_sqlite_print_the_same";
    same(test, &["perl"], text, &modes(test));
    let text = r"
        set -e
        export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1
        git init -q -b main one; cd one; git config user.email a@b; git config user.name a
        for n in 1 2 3 4; do seq $n $((n * 3000)) > f$n; git add .; git commit -qm $n; done
        git repack -qad --threads=2; git log --stat --oneline; git clone -q . ../two; cd ../two; git fsck --full; git diff HEAD~2 | tail -2
    ";
    same(test, &["git"], text, &["", "page.disposition=shared-fd"]);
    let text = r#"
        sqlite3 base "create table t(a integer primary key, b text); with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
            insert into t select i, hex(i * i) from n; create index x on t(b); select count(*), max(b), sum(length(b)) from t where b > '3';
            select substr(b, 1, 2) s, count(*) from t group by s order by 2 desc, 1 limit 5; pragma integrity_check;"
    "#;
    same(test, &["sqlite3"], text, &["", "size.threshold=100"]);
}

#[test]
fn compiler_output_is_the_same() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/stress.c");
    let text = format!("cc -O1 -g0 -c -o made.o {} && cksum < made.o", source.display());
    same("compiler_output_is_the_same", &["cc"], &text, &["", "size.threshold=64"]);
}

/// Makes sure that the programs above ran with the library.
#[test]
fn library_is_mapped_in_programs() {
    let outcome = script("grep -c libumf_proxy /proc/self/maps", Some(""));
    assert!(library().exists() && outcome.output.trim().parse::<u32>().unwrap() > 0, "{outcome:?}");
}
