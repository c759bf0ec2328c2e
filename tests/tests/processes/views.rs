//! Typed views of memory that another process reads and writes.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::sync::atomic::Ordering;

use umf::{AsPod, AsZerocopy, Plain, Pool};
use umf_tests::actor;

/// Structure without padding, so that all bytes are defined.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
#[repr(C)]
struct Sample {
    time: u64,
    values: [f32; 3],
    flags: u32,
}

fn sample(number: u16) -> Sample {
    let value = f32::from(number);
    Sample { time: number.into(), values: [value, value / 2.0, value / 4.0], flags: !u32::from(number) }
}

#[test]
fn typed_view_reads_bytes_of_other_process() {
    let pool = Pool::shared().unwrap();
    let block = pool.allocate(100 * size_of::<Sample>() + 5).unwrap();
    let samples = block.view::<Sample>().unwrap();
    assert_eq!(samples.len(), 100, "the last 5 bytes are no whole sample");
    for (index, number) in (0..100).zip(0..) {
        samples.set(index, sample(number)).unwrap();
    }
    let handle = block.handle().unwrap();
    let mapping = umf::open_read_only(&handle).unwrap();
    let mapped = mapping.read_view::<Sample>().unwrap();
    assert!(mapped.iter().take(100).zip(0..).all(|(found, number)| found == sample(number)));
    assert!(matches!(mapping.view::<Sample>(), Err(umf::ipc::Error::ReadOnly)));
    // Any bytes that another process writes are valid samples.
    let mut other = actor!();
    other.ok(&format!("open {handle} -> m"));
    other.ok("fill m 7");
    let bytes = block.view::<u8>().unwrap().to_vec();
    let found = samples.get(99).unwrap();
    assert_eq!(found.time.to_ne_bytes(), bytes[99 * 24..][..8]);
    assert_eq!(found.values[2].to_ne_bytes(), bytes[99 * 24 + 16..][..4]);
    assert_eq!(mapped.get(99).unwrap().time, found.time);
}

#[test]
fn pod_types_of_other_crates_work_in_views() {
    let pool = Pool::shared().unwrap();
    let block = pool.allocate(64).unwrap();
    block.view::<AsPod<[u16; 4]>>().unwrap().set(1, AsPod([1, 2, 3, 4])).unwrap();
    let words = block.view::<AsZerocopy<[u16; 2]>>().unwrap();
    assert_eq!(words.get(3).map(|AsZerocopy(pair)| pair), Some([3, 4]));
    assert_eq!(bytemuck::bytes_of(&block.view::<u64>().unwrap().get(1).unwrap()).len(), 8);
    assert_eq!(zerocopy::IntoBytes::as_bytes(&words.get(2).unwrap().0), [1, 0, 2, 0]);
}

#[test]
fn atomics_order_data_across_processes() {
    const ROUNDS: u64 = 2000;
    let pool = Pool::shared().unwrap();
    let block = pool.allocate(4096).unwrap();
    let words = block.view::<u64>().unwrap();
    let (turn, data) = (words.atomic(0).unwrap(), words.range(1..).unwrap());
    words.fill(0);
    // SAFETY: the child uses the memory through views, which allocate nothing, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if its parent is gone.
        unsafe { libc::alarm(120) };
        let right = (1..=ROUNDS).all(|round| {
            while turn.load(Ordering::Acquire) != 2 * round - 1 {
                std::thread::yield_now();
            }
            let same = (0..data.len()).all(|index| data.get(index) == Some(round));
            turn.store(2 * round, Ordering::Release);
            same
        });
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    for round in 1..=ROUNDS {
        data.fill(round);
        turn.store(2 * round - 1, Ordering::Release);
        while turn.load(Ordering::Acquire) != 2 * round {
            std::thread::yield_now();
        }
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child read what was published");
}
