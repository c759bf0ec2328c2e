//! Times a C program with this library and without, in turn: `name, ours, peer, ratio` (ours to
//! peer's).
//!
//! `cargo bench -p umf-malloc --profile capi` takes the library as `install` builds it.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the environment as it is")]

use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: usize = 7;
/// Name, operations, threads.
const ROWS: [(&str, &str, &str); 10] = [
    ("pair", "20000000", "1"),
    ("small", "5000000", "1"),
    ("small", "5000000", "2"),
    ("medium", "2000000", "1"),
    ("medium", "2000000", "2"),
    ("large", "200000", "1"),
    ("handed", "3000000", "2"),
    ("zeroed", "3000000", "1"),
    ("grown", "1000000", "1"),
    ("start", "0", "1"),
];

fn main() {
    let library = std::env::current_exe().ok().map(|own| own.with_file_name("libumf_proxy.so"));
    let Some(library) = library.filter(|library| library.exists()) else {
        println!("umf-skip: there is no libumf_proxy.so beside this program");
        return;
    };
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("umf-proxy-churn");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/churn.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-lpthread")
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("umf-skip: there is no C compiler ({compiler})");
        return;
    }
    println!(
        "{:<16} {:>9} {:>9} {:>7}   ns (start: us), the least of {ROUNDS}",
        "name", "ours", "libc", "ratio"
    );
    for (row, operations, threads) in ROWS {
        let (mut ours, mut libc) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            ours = ours.min(time(&program, [row, operations, threads], Some(&library)));
            libc = libc.min(time(&program, [row, operations, threads], None));
        }
        println!("{:<16} {ours:>9.2} {libc:>9.2} {:>7.2}", format!("proxy.{row}.{threads}t"), ours / libc);
    }
}

/// Returns the time that the program prints; for `start`, the time of the whole run.
fn time(program: &Path, arguments: [&str; 3], preload: Option<&Path>) -> f64 {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("LD_PRELOAD").env_remove("UMF_PROXY");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let begin = std::time::Instant::now();
    let Ok(output) = command.output() else { return f64::NAN };
    if arguments[0] == "start" {
        return begin.elapsed().as_secs_f64() * 1e6;
    }
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(f64::NAN)
}
