//! `umf bench`: that it measures what it says, never how fast.

// Functions that tests share are tests to us, if not to clippy.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn umf(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
    command.arg("bench").args(arguments).stdin(Stdio::null());
    command.current_dir(std::env::temp_dir()).env("HOME", "/nonexistent");
    command
}

/// The rows of a short run.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = umf(arguments).args(["--quick", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for row in &rows {
        let (value, min) = (row["value"].as_f64().unwrap(), row["min"].as_f64().unwrap());
        let is_difference = row["name"] == "pool.find_pool.more";
        assert!(is_difference || value > 0.0 && min > 0.0, "{row}");
        assert!(["ns", "GB/s", "x", "%"].contains(&row["unit"].as_str().unwrap()), "{row}");
        assert_eq!(row.get("peer").is_some(), row.get("peer_value").is_some());
        assert_eq!(row.get("peer").is_some(), row.get("ratio").is_some());
    }
    rows
}

fn has(rows: &[Value], name: &str) -> bool {
    rows.iter().any(|row| row["name"] == name)
}

#[test]
fn ipc_rows() {
    let rows = rows(&["ipc"]);
    for name in [
        "marker.cache_line",
        "marker.memcpy",
        "ipc.get_put_cached",
        "ipc.export_cold",
        "ipc.encode_text",
        "ipc.decode",
        "ipc.open_close_cached.1t",
        "ipc.open_close_cached.2t",
        "ipc.open_close_cached.same_region.2t",
        "ipc.open_cold",
        "ipc.open_cold.bare",
        "ipc.first_contact",
        "ipc.access.heard.open_close",
        "ipc.access.heard.read_64",
    ] {
        assert!(has(&rows, name), "{name}");
    }
    let cold = rows.iter().find(|row| row["name"] == "ipc.open_cold").unwrap();
    assert_eq!(cold["peer"], "bare system calls");
    // Where there are such buffers.
    let has_buffers = umf::dma_buf::Udmabuf::open().is_ok();
    for row in ["open_close", "read_64"] {
        assert_eq!(has(&rows, &format!("ipc.access.dma_buf.{row}")), has_buffers, "{row}");
    }
}

/// With glibc, the one peer that is everywhere.
fn has_peer(rows: &[Value], name: &str) -> bool {
    rows.iter().any(|row| row["name"] == *name && row["peer"] == "glibc")
}

#[test]
fn pool_rows() {
    let rows = rows(&["pool"]);
    let orders = ["pair", "lifo", "fifo", "random", "xfree"];
    for size in ["small", "large"] {
        for order in orders {
            for threads in [1, 2, 4] {
                let name = format!("pool.{size}.{order}.{threads}t");
                assert!(has_peer(&rows, &name), "{name}");
            }
            let name = format!("pool.touched.{size}.{order}.1t");
            assert!(has_peer(&rows, &name), "{name}");
        }
        for threads in [1, 2, 4, 8] {
            let name = format!("pool.{size}.larson.{threads}t");
            assert!(has_peer(&rows, &name), "{name}");
        }
        let name = format!("pool.churn.reserved_over_live.{size}");
        assert!(has_peer(&rows, &name), "{name}");
        let churned = rows.iter().find(|row| row["name"] == *name).unwrap();
        assert!(churned["value"].as_f64().unwrap() >= 1.0, "what lives was reserved: {churned}");
    }
    for name in ["pool.mixed.random.1t", "pool.mixed.larson.2t", "pool.threads.8", "pool.threads.8.large"] {
        assert!(has_peer(&rows, name), "{name}");
    }
    for name in ["pool.find_pool", "pool.find_pool.more", "pool.metadata"] {
        assert!(has(&rows, name), "{name}");
    }
}

#[test]
fn only_the_rows_that_are_asked_for() {
    let rows = rows(&["pool", "--rows", "small.pair,find_pool.more"]);
    let names: BTreeSet<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    let expected = [
        "marker.cache_line",
        "marker.memcpy",
        "pool.find_pool.more",
        "pool.small.pair.1t",
        "pool.small.pair.2t",
        "pool.small.pair.4t",
        "pool.touched.small.pair.1t",
        "pool.touched.small.pair.2t",
    ];
    assert_eq!(names, BTreeSet::from(expected));
    let output = umf(&["pool", "--quick", "--rows", "nothing"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--rows nothing: no row"), "{stderr}");
}

#[test]
fn the_table_is_aligned() {
    let output = umf(&["ipc", "--quick"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let heading = text.lines().next().unwrap();
    assert!(heading.starts_with("name") && heading.ends_with("ratio"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.len() >= heading.len()), "{text}");
}

#[test]
fn a_peer_that_is_none_is_refused() {
    for path in ["/nonexistent/libumf.so.1", "/dev/null", "/proc/self/exe"] {
        let output = umf(&["ipc", "--quick", "--peer-umf", path]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{path}: {stderr}");
        assert!(stderr.contains(&format!("--peer-umf {path}: ")), "{stderr}");
    }
}

/// This project's C library, as `install` builds it; `None`, and one line that says why, where there is no C compiler.
fn c_library(test: &str) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let version = Command::new(&compiler).arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("umf-skip: {test}: there is no C compiler ({compiler})");
        return None;
    }
    // Where the tests of that crate have put it, if they ran before.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let prefix = folder.join("umf-capi");
    let mut install = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../umf-capi/install"));
    install.arg(&prefix).arg("dev").env("CARGO_TARGET_DIR", folder.parent().unwrap());
    let output = install.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(prefix.join("lib/libumf.so.1"))
}

#[test]
fn capi_rows() {
    let Some(ours) = c_library("capi_rows") else { return };
    // A copy stands in for the original: another library of the same name, in the same process.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-capi-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let copy = folder.join("libumf.so.1");
    std::fs::copy(&ours, &copy).unwrap();
    let (ours, copy) = (ours.to_str().unwrap(), copy.to_str().unwrap());
    let rows = rows(&["capi", "--ours", ours, "--peer-umf", copy]);
    let mut names = vec![
        "capi.small.xfree.1t".to_owned(),
        "capi.free_any".to_owned(),
        "capi.pool_by_ptr".to_owned(),
        "capi.get_put".to_owned(),
    ];
    for threads in [1, 2] {
        for row in ["small.pair", "small.random", "1k_64k.random", "open_close"] {
            names.push(format!("capi.{row}.{threads}t"));
        }
        names.push(format!("capi.1k_64k.random.{threads}t.capacity_64"));
        names.push(format!("capi.jemalloc.small.random.{threads}t"));
    }
    for row in ["small.pair", "1k_64k.random", "small.xfree"] {
        names.push(format!("capi.jemalloc.{row}.1t"));
    }
    for name in &names {
        assert!(rows.iter().any(|row| row["name"] == *name && row["peer"] == "umf (C)"), "{name}");
    }
    assert_eq!(
        rows.iter().filter(|row| row["name"].as_str().unwrap().starts_with("capi.")).count(),
        names.len()
    );

    // The peer may be left out, ours may not be the peer, and rows may be chosen.
    let arguments = ["capi", "--quick", "--rows", "pool_by_ptr", "--ours", ours];
    let alone = umf(&arguments).output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&alone.stdout), String::from_utf8_lossy(&alone.stderr));
    assert!(alone.status.success() && told.contains("--peer-umf names no libumf.so.1"), "{told}");
    assert!(said.contains("capi.pool_by_ptr") && !said.contains("capi.get_put"), "{said}");
    let same = umf(&arguments).args(["--peer-umf", ours]).output().unwrap();
    let told = String::from_utf8_lossy(&same.stderr);
    assert!(same.status.code() == Some(1) && told.contains("the same file"), "{told}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_c_library_that_is_not_there_is_named() {
    let refused = |arguments: &[&str], text: &str| {
        let output = umf(arguments).args(["--quick", "--rows", "pool_by_ptr"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(text), "{arguments:?}: {stderr}");
    };
    refused(&["capi"], "crates/umf-capi/install PREFIX");
    for path in ["/nonexistent/libumf.so.1", "/dev/null"] {
        refused(&["capi", "--ours", path], &format!("--ours {path}: "));
    }
}

#[test]
fn nobody_reads_what_it_says() {
    let mut child = umf(&["ipc", "--quick", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn link_rows() {
    let plot = std::env::temp_dir().join(format!("umf-test-plot-{}.svg", std::process::id()));
    let output = umf(&["link", "--quick", "--json", "--plot"]).arg(&plot).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let rows: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for row in &rows {
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        assert!(["ns", "us", "GB/s", "M/s"].contains(&row["unit"].as_str().unwrap()), "{row}");
    }
    let mut expected: Vec<String> =
        ["link.line", "link.latency.8b", "link.rate.8b", "link.handover.1m", "link.handover.16m"]
            .map(str::to_owned)
            .into();
    for size in ["8b", "1m", "16m"] {
        expected.push(format!("link.allreduce.{size}.2r"));
        expected.push(format!("link.allreduce.{size}.2r.private"));
    }
    let has_cma = !said.contains("no rows of cma");
    for size in ["64k", "1m", "16m"] {
        expected.push(format!("link.raw.{size}.copy_out"));
        for engine in ["both", "mapped", "cma", "bounce"] {
            if engine == "cma" && !has_cma {
                continue;
            }
            expected.push(format!("link.halfrtt.{size}.{engine}"));
            expected.push(format!("link.bandwidth.{size}.{engine}"));
        }
        if has_cma {
            expected.push(format!("link.raw.{size}.readv"));
        }
    }
    for count in [16, 512] {
        for engine in ["mapped", "cma", "raw"] {
            if engine == "mapped" || has_cma {
                expected.push(format!("link.strided.{count}.{engine}"));
            }
        }
    }
    for name in expected {
        assert!(has(&rows, &name), "{name}");
    }
    let picture = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.matches("<polyline").count() >= 3, "{picture}");
}
