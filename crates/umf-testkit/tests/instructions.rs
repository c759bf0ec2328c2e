//! Counts the instructions of the slab pool's common paths, and compares them with recorded
//! ceilings. Unlike times, these counts do not depend on the load of the machine. Runs under
//! valgrind's callgrind, in a release build:
//! `cargo test --release --package umf-testkit --test instructions -- --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;

use umf_core::{Address, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::MmapProvider;

/// The name of a workload, its sizes, and the ceiling: the most instructions of an allocation and
/// a free together, including 25 to 60 of the loop around them.
const CEILINGS: [(&str, (usize, usize), u64); 8] = [
    ("pair", (8, 4 << 10), 83),
    ("lifo", (8, 4 << 10), 107),
    ("fifo", (8, 4 << 10), 128),
    ("random", (8, 4 << 10), 118),
    ("pair", (64 << 10, 4 << 20), 106),
    ("lifo", (64 << 10, 4 << 20), 133),
    ("fifo", (64 << 10, 4 << 20), 172),
    ("random", (64 << 10, 4 << 20), 187),
];

/// The environment variable with the task of a child process that runs this test again: the number
/// of a workload, and its rounds.
const TASK: &str = "TESTS_SLAB_INSTRUCTIONS";
/// Allocations of a round.
const SCRIPT: usize = 4096;
/// Rounds before counting.
const WARM: u64 = 60;
/// Counted rounds.
const COUNTED: u64 = 40;

fn allocate(pool: &dyn Pool, size: usize) -> Address {
    Layout::new(black_box(size), 8).and_then(|layout| umf_core::pool::allocate(pool, layout)).expect("memory")
}

fn free(pool: &dyn Pool, address: Address) {
    // SAFETY: the workload allocated the block, frees it once, and no longer uses it.
    unsafe { umf_core::pool::free(pool, address) }.expect("the block is live");
}

/// Runs `rounds` rounds of a workload.
fn run_workload(order: &str, (least, most): (usize, usize), rounds: u64) {
    let pool: Arc<dyn Pool> = SlabPool::new(MmapProvider::private(), SlabSettings::new()).unwrap();
    let pool = &*pool;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % limit
    };
    let script: Vec<usize> = (0..SCRIPT).map(|_| least + below(most - least)).collect();
    let live = if most > 64 << 10 { 200 } else { 1000 };
    let indices: Vec<usize> = (0..SCRIPT).map(|_| below(live)).collect();
    let mut blocks: VecDeque<Address> = match order {
        "fifo" | "random" => (0..live).map(|n| allocate(pool, script[n])).collect(),
        _ => VecDeque::new(),
    };
    for round in 0..rounds as usize {
        let size = |n: usize| script[(n + 37 * round) % SCRIPT];
        match order {
            "pair" => script.iter().for_each(|&size| free(pool, black_box(allocate(pool, size)))),
            "lifo" => {
                for sizes in script.chunks_exact(64) {
                    sizes.iter().for_each(|&size| blocks.push_back(allocate(pool, size)));
                    while let Some(address) = blocks.pop_back() {
                        free(pool, address);
                    }
                }
            }
            "fifo" => {
                for n in 0..SCRIPT {
                    blocks.pop_front().into_iter().for_each(|address| free(pool, address));
                    blocks.push_back(allocate(pool, size(n)));
                }
            }
            _ => {
                for (n, &index) in indices.iter().enumerate() {
                    free(pool, blocks[index]);
                    blocks[index] = allocate(pool, size(n));
                }
            }
        }
    }
    blocks.into_iter().for_each(|address| free(pool, address));
}

/// Runs a workload in a child process under callgrind. Returns the number of instructions.
fn instructions(workload: usize, rounds: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "common_paths_stay_below_their_ceilings", "--test-threads=1"])
        .env(TASK, format!("{workload} {rounds}"))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let collected =
        report.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, count)| count.trim());
    collected
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("callgrind printed no count: {report}"))
}

#[test]
fn common_paths_stay_below_their_ceilings() {
    if let Ok(task) = std::env::var(TASK) {
        let (workload, rounds) = task.split_once(' ').unwrap();
        let (order, sizes, _) = CEILINGS[workload.parse::<usize>().unwrap()];
        return run_workload(order, sizes, rounds.parse().unwrap());
    }
    if cfg!(debug_assertions) {
        println!("umf-skip: instructions: counted in release builds only (cargo test --release)");
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("umf-skip: instructions: no valgrind here to count them with (apt-get install valgrind)");
        return;
    }
    let mut above = Vec::new();
    for (workload, (order, (least, most), ceiling)) in CEILINGS.into_iter().enumerate() {
        let count = instructions(workload, WARM + COUNTED) - instructions(workload, WARM);
        let each = count / (COUNTED * SCRIPT as u64);
        println!("{order} of {least} to {most} bytes: {each} instructions (ceiling {ceiling})");
        if each > ceiling {
            above.push((order, least, each, ceiling));
        }
    }
    assert!(above.is_empty(), "more instructions than the ceilings allow: {above:?}");
}
