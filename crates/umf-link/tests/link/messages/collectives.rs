//! Collectives of ranks in threads: results in pool and private memory, mismatches and ends.

use std::time::Duration;

use umf_link::{Destination, Engine, Error, LinkSettings, Operation, Reduction};

use super::ranks::{announced, ranks};
use crate::messages::{SECOND, forced, memory};

/// Memory for a collective, filled with the numbers of a rank.
enum Buffer {
    Private(Vec<f64>),
    Pool(Box<umf_link::Memory<'static>>),
}

impl Buffer {
    fn new(is_pool: bool, numbers: &[f64]) -> Self {
        if !is_pool {
            return Self::Private(numbers.to_vec());
        }
        let memory = memory(size_of_val(numbers).max(1));
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        memory.slice().copy_from(&bytes);
        Self::Pool(Box::new(memory))
    }

    fn all(&mut self) -> Destination<'_> {
        match self {
            Self::Private(numbers) => Destination::from(&mut numbers[..]),
            Self::Pool(memory) => (&**memory).into(),
        }
    }

    fn numbers(&self) -> Vec<f64> {
        match self {
            Self::Private(numbers) => numbers.clone(),
            Self::Pool(memory) => {
                let mut bytes = vec![0; memory.len()];
                memory.slice().copy_to(&mut bytes);
                bytes.chunks_exact(8).map(|number| f64::from_ne_bytes(number.try_into().unwrap())).collect()
            }
        }
    }
}

fn numbers_of(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|index| ((index * 31 + rank * 17) % 97) as f64 + 0.1).collect()
}

/// Runs all collectives, with pool memory in the ranks for which `is_pool` returns `true`.
fn check_collectives(size: usize, settings: &LinkSettings, is_pool: fn(usize) -> bool) {
    let sum = Reduction::of::<f64>(Operation::Sum).unwrap();
    for count in [1, 513, 40_001] {
        let all: Vec<Vec<f64>> = (0..size).map(|rank| numbers_of(rank, count)).collect();
        let exact: Vec<f64> = (0..count).map(|at| all.iter().map(|one| one[at]).sum()).collect();
        let results = ranks(size, settings, |comm| {
            let me = comm.rank();
            let buffer = |numbers: &[f64]| Buffer::new(is_pool(me), numbers);
            let mut sums = buffer(&numbers_of(me, count));
            comm.allreduce(sums.all(), sum).unwrap();
            for root in [0, size - 1] {
                let mut given = buffer(&numbers_of(me, count));
                comm.bcast(root, given.all()).unwrap();
                assert!(given.numbers() == numbers_of(root, count), "{count} from {root}");
            }
            let mut part = buffer(&numbers_of(me, count));
            comm.reduce_scatter(part.all(), sum).unwrap();
            let mine = comm.share(count, me);
            let numbers = part.numbers();
            let before = numbers_of(me, count);
            assert!(
                numbers[..mine.start] == before[..mine.start] && numbers[mine.end..] == before[mine.end..]
            );
            assert!(mine.into_iter().all(|at| (numbers[at] - exact[at]).abs() < 1e-9), "{count}");
            // In bytes, so that shares are not whole numbers.
            let mut all = buffer(&vec![0.0; count]);
            let bytes = comm.share(count * 8, me);
            let own_part: Vec<u8> =
                numbers_of(9, count).iter().flat_map(|number| number.to_ne_bytes()).collect();
            let mut whole: Vec<u8> = vec![0; count * 8];
            whole[bytes.clone()].copy_from_slice(&own_part[bytes]);
            match &mut all {
                Buffer::Pool(memory) => assert_eq!(memory.slice().copy_from(&whole), whole.len()),
                Buffer::Private(numbers) => {
                    for (number, bytes) in numbers.iter_mut().zip(whole.chunks_exact(8)) {
                        *number = f64::from_ne_bytes(bytes.try_into().unwrap());
                    }
                }
            }
            comm.allgather(all.all()).unwrap();
            assert!(all.numbers() == numbers_of(9, count), "{count}");
            let root = count % size;
            let mut total = buffer(&numbers_of(me, count));
            comm.reduce(root, total.all(), sum).unwrap();
            if me == root {
                assert!(total.numbers().iter().zip(&exact).all(|(one, other)| (one - other).abs() < 1e-9));
            } else {
                assert!(total.numbers() == numbers_of(me, count), "the memory of other ranks is unchanged");
            }
            let blocks: Vec<f64> = (0..size).flat_map(|to| numbers_of(10 * me + to, count)).collect();
            let (mut outgoing, mut incoming) = (buffer(&blocks), buffer(&vec![0.0; size * count]));
            let source = match &mut outgoing {
                Buffer::Private(numbers) => umf_link::Source::from(&numbers[..]),
                Buffer::Pool(memory) => (&**memory).into(),
            };
            comm.alltoall(source, incoming.all()).unwrap();
            let expected: Vec<f64> = (0..size).flat_map(|from| numbers_of(10 * from + me, count)).collect();
            assert!(incoming.numbers() == expected, "{count}");
            comm.barrier().unwrap();
            sums.numbers()
        });
        assert!(
            results.iter().all(|result| *result == results[0]),
            "the result differs between ranks: {size} {count}"
        );
        assert!(
            results[0].iter().zip(&exact).all(|(one, other)| (one - other).abs() < 1e-9),
            "{size} {count}"
        );
    }
}

#[test]
fn collectives_of_pool_memory() {
    for size in [1, 2, 3] {
        check_collectives(size, &LinkSettings::default(), |_| true);
    }
}

#[test]
fn collectives_of_private_memory() {
    check_collectives(2, &LinkSettings::default(), |_| false);
    check_collectives(3, &forced(Engine::Bounce), |_| false);
}

#[test]
fn collectives_of_mixed_memory() {
    check_collectives(2, &LinkSettings::default(), |rank| rank == 1);
    check_collectives(3, &LinkSettings::default(), |rank| rank != 1);
}

#[test]
fn allreduce_supports_all_operations_and_elements() {
    ranks(2, &LinkSettings::default(), |comm| {
        let me = comm.rank();
        for operation in Operation::ALL {
            for element in umf_link::Element::ALL {
                let Ok(reduction) = Reduction::new(operation, element) else { continue };
                // Both ranks have the same numbers, so the result is known.
                let buffer = memory(80_000);
                buffer.slice().copy_from(&[0_u8; 80_000][..]);
                buffer.slice().copy_from(&[2_u8.pow(me as u32); 4][..]);
                comm.allreduce(&buffer, reduction).unwrap();
                let mut first = [9_u8; 8];
                buffer.slice().copy_to(&mut first);
                if element.size() == 1 {
                    let expected = match operation {
                        Operation::Sum | Operation::Or | Operation::Xor => 3,
                        Operation::Product | Operation::Max => 2,
                        Operation::Min => 1,
                        _ => 0,
                    };
                    assert_eq!(first[..4], [expected; 4], "{reduction}");
                    assert_eq!(first[4..], [0; 4], "{reduction}");
                }
            }
        }
    });
}

#[test]
fn different_collectives_are_mismatch() {
    let sum = Reduction::of::<f64>(Operation::Sum).unwrap();
    let max = Reduction::of::<f64>(Operation::Max).unwrap();
    for case in 0..4 {
        let results = ranks(2, &LinkSettings::default(), |comm| {
            let mut numbers = vec![1.0; 10_000];
            let result = match (case, comm.rank()) {
                (0, 0) => comm.barrier(),
                (0 | 1, 1) | (1, 0) if case == 0 => comm.allreduce(&mut numbers[..10], sum),
                (1, 0) => comm.allreduce(&mut numbers[..], sum),
                (1, _) => comm.allreduce(&mut numbers[..9000], sum),
                (2, 0) => comm.allreduce(&mut numbers[..], sum),
                (2, _) => comm.allreduce(&mut numbers[..], max),
                (_, 0) => comm.bcast(0, &mut numbers[..20]),
                _ => comm.bcast(0, &mut numbers[..10]),
            };
            let again = comm.barrier();
            (result, again)
        });
        let is_mismatch = |result: &Result<(), Error>| matches!(result, Err(Error::Mismatch { .. }));
        assert!(results.iter().any(|(result, _)| is_mismatch(result)), "{case} {results:?}");
        for (result, again) in &results {
            let is_reported = is_mismatch(result)
                || matches!(result, Err(Error::CollectivesEnded { .. }))
                || case == 3 && result.is_ok();
            assert!(is_reported && again.is_err(), "{case} {results:?}");
        }
    }
}

#[test]
fn collectives_while_peers_announce_only() {
    for size in [2, 3] {
        for engine in [None, Some(Engine::Bounce)] {
            announced(size, engine, |comm| {
                let sum = Reduction::of::<u64>(Operation::Sum).unwrap();
                for count in [1, 5000] {
                    let mut numbers = vec![1_u64; count];
                    comm.allreduce(&mut numbers[..], sum).unwrap();
                    assert!(numbers.iter().all(|number| *number == size as u64));
                    comm.bcast(0, &mut numbers[..]).unwrap();
                    comm.allgather(&mut numbers[..]).unwrap();
                    comm.barrier().unwrap();
                }
                let shared = memory(80_000);
                shared.slice().copy_from(&[1; 80_000]);
                comm.allreduce(&shared, Reduction::of::<u8>(Operation::Sum).unwrap()).unwrap();
            });
        }
    }
}

/// A rank that ends its collectives announces that outside of the rings.
#[test]
fn collectives_ended_is_seen_past_full_ring() {
    ranks(2, &LinkSettings::default(), |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            comm.set_timeout(Some(Duration::from_millis(50)));
            while comm.send(1, 1, &[0; 8]).is_ok() {}
            comm.barrier().unwrap_err();
            comm.set_timeout(SECOND);
            // Waits until the other rank has seen it.
            comm.recv(1, 2, &mut []).unwrap();
            return;
        }
        std::thread::sleep(Duration::from_millis(300));
        let error = comm.barrier().unwrap_err();
        assert!(matches!(error, Error::CollectivesEnded { rank: 0 }), "{error}");
        comm.send(0, 2, &[]).unwrap();
    });
}
