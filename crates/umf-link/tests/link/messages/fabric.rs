//! Ranks in threads: messages from each to each, and collectives.

use std::time::Duration;

use umf_link::{
    Destination, Engine, Error, Fabric, LinkBuilder, LinkSettings, Operation, Reduction, TagMatch,
};

use crate::messages::{SECOND, content, forced, importer, memory};

/// Runs all ranks of a job; every one of them is the last to let go of its fabric.
fn ranks<T: Send>(size: usize, settings: &LinkSettings, run: impl Fn(&mut Fabric) -> T + Sync) -> Vec<T> {
    static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let job = format!("test-{}-{number}", std::process::id());
    let all_done = std::sync::Barrier::new(size);
    std::thread::scope(|scope| {
        let (job, run, all_done) = (&job, &run, &all_done);
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                scope.spawn(move || {
                    let builder = LinkBuilder::new().settings(settings.clone()).importer(importer());
                    let mut fabric = builder.join(job, rank, size).unwrap();
                    fabric.set_timeout(Some(Duration::from_secs(20)));
                    assert_eq!((fabric.rank(), fabric.size()), (rank, size));
                    let done = run(&mut fabric);
                    all_done.wait();
                    done
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn each_sends_to_each_and_receives_from_any() {
    ranks(4, &LinkSettings::default(), |fabric| {
        let me = fabric.rank();
        let others = (0..4).filter(|rank| *rank != me);
        let message = |from: usize, to: usize| content(10 + 30_000 * (from % 2), (from * 10 + to) as u64);
        // All begin with the same one, so that many call on each other at the same time.
        std::thread::scope(|_| {
            for to in others.clone().filter(|to| message(me, *to).len() < 4096) {
                fabric.send(to, 5, &message(me, to)).unwrap();
            }
        });
        let mut seen = Vec::new();
        let mut into = vec![0; 40_000];
        let count = others.clone().filter(|from| message(*from, me).len() < 4096).count();
        for _ in 0..count {
            let (from, received) = fabric.recv_any(5, &mut into).unwrap();
            assert_eq!(into[..received.length], message(from, me));
            seen.push(from);
        }
        seen.sort_unstable();
        let expected: Vec<_> = others.clone().filter(|from| message(*from, me).len() < 4096).collect();
        assert_eq!(seen, expected);
        // Long ones go when they are received: those of odd ranks, one after the other.
        for from in [1, 3] {
            for to in (0..4).filter(|to| *to != from) {
                if me == from {
                    fabric.send(to, 6, &message(me, to)).unwrap();
                } else if me == to {
                    let (rank, received) = fabric.recv_any(TagMatch::tag(6), &mut into).unwrap();
                    assert!(rank == from && into[..received.length] == message(from, me));
                }
            }
        }
        fabric.barrier().unwrap();
        assert!(fabric.linked().count() <= 3);
        fabric.set_timeout(Some(Duration::from_millis(5)));
        assert!(matches!(fabric.recv_any(9, &mut into), Err(Error::TimedOut { .. })));
    });
}

#[test]
fn any_means_each_in_its_turn() {
    ranks(3, &LinkSettings::default(), |fabric| {
        if fabric.rank() > 0 {
            for number in 0..50_u8 {
                fabric.send(0, 1, &[number]).unwrap();
            }
            fabric.barrier().unwrap();
            return;
        }
        // Both are linked, and all of it has come.
        fabric.recv(1, 1, &mut [0]).unwrap();
        fabric.recv(2, 1, &mut [0]).unwrap();
        fabric.barrier().unwrap();
        let mut from = Vec::new();
        let mut next = [1_u8; 3];
        for _ in 0..98 {
            let mut byte = [0];
            let (rank, _) = fabric.recv_any(TagMatch::ANY, &mut byte).unwrap();
            assert_eq!(byte[0], next[rank], "in order");
            next[rank] += 1;
            from.push(rank);
        }
        assert!(from.windows(2).all(|pair| pair[0] != pair[1]), "{from:?}");
    });
}

#[test]
fn what_any_rank_has_sent_is_probed() {
    ranks(3, &LinkSettings::default(), |fabric| {
        if fabric.rank() > 0 {
            let bytes = vec![1_u8; fabric.rank()];
            fabric.send(0, fabric.rank() as u64, &bytes[..]).unwrap();
            fabric.barrier().unwrap();
            return;
        }
        fabric.barrier().unwrap();
        let (rank, probed) = fabric.probe_any(2).unwrap().unwrap();
        assert_eq!((rank, probed.tag, probed.length), (2, 2, 2));
        let (rank, probed) = fabric.probe_any(TagMatch::ANY).unwrap().unwrap();
        let mut bytes = [0; 2];
        let (from, received) = fabric.recv_any(TagMatch::ANY, &mut bytes).unwrap();
        assert_eq!((from, received.tag, received.length), (rank, probed.tag, probed.length));
        assert_eq!(fabric.probe_any(rank as u64).unwrap(), None, "it was received");
    });
}

/// Who takes no part any more says so even where a ring is full.
#[test]
fn a_rank_that_gave_up_is_told_of_past_a_full_ring() {
    ranks(2, &LinkSettings::default(), |fabric| {
        fabric.barrier().unwrap();
        if fabric.rank() == 0 {
            fabric.set_timeout(Some(Duration::from_millis(50)));
            while fabric.send(1, 1, &[0; 8]).is_ok() {}
            fabric.barrier().unwrap_err();
            fabric.set_timeout(SECOND);
            // Not before the other one has seen it.
            fabric.recv(1, 2, &mut []).unwrap();
            return;
        }
        std::thread::sleep(Duration::from_millis(300));
        let over = fabric.barrier().unwrap_err();
        assert!(matches!(over, Error::GivenUp { rank: 0 }), "{over}");
        fabric.send(0, 2, &[]).unwrap();
    });
}

/// Memory for a collective, filled with what a rank has.
enum Place {
    Own(Vec<f64>),
    Pool(Box<umf_link::Memory<'static>>),
}

impl Place {
    fn new(is_pool: bool, numbers: &[f64]) -> Self {
        if !is_pool {
            return Self::Own(numbers.to_vec());
        }
        let memory = memory(size_of_val(numbers).max(1));
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        memory.slice().copy_from(&bytes);
        Self::Pool(Box::new(memory))
    }

    fn all(&mut self) -> Destination<'_> {
        match self {
            Self::Own(numbers) => Destination::from(&mut numbers[..]),
            Self::Pool(memory) => (&**memory).into(),
        }
    }

    fn numbers(&self) -> Vec<f64> {
        match self {
            Self::Own(numbers) => numbers.clone(),
            Self::Pool(memory) => {
                let mut bytes = vec![0; memory.len()];
                memory.slice().copy_to(&mut bytes);
                bytes.chunks_exact(8).map(|number| f64::from_ne_bytes(number.try_into().unwrap())).collect()
            }
        }
    }
}

fn own(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|place| ((place * 31 + rank * 17) % 97) as f64 + 0.1).collect()
}

/// All collectives, of memory of pools in ranks that `is_pool` says.
fn collectives(size: usize, settings: &LinkSettings, is_pool: fn(usize) -> bool) {
    let sum = Reduction::of::<f64>(Operation::Sum).unwrap();
    for count in [1, 513, 40_001] {
        let all: Vec<Vec<f64>> = (0..size).map(|rank| own(rank, count)).collect();
        let exact: Vec<f64> = (0..count).map(|at| all.iter().map(|one| one[at]).sum()).collect();
        let results = ranks(size, settings, |fabric| {
            let me = fabric.rank();
            let place = |numbers: &[f64]| Place::new(is_pool(me), numbers);
            let mut sums = place(&own(me, count));
            fabric.allreduce(sums.all(), sum).unwrap();
            for root in [0, size - 1] {
                let mut given = place(&own(me, count));
                fabric.bcast(root, given.all()).unwrap();
                assert!(given.numbers() == own(root, count), "{count} from {root}");
            }
            let mut part = place(&own(me, count));
            fabric.reduce_scatter(part.all(), sum).unwrap();
            let mine = fabric.share(count, me);
            let numbers = part.numbers();
            let before = own(me, count);
            assert!(
                numbers[..mine.start] == before[..mine.start] && numbers[mine.end..] == before[mine.end..]
            );
            assert!(mine.into_iter().all(|at| (numbers[at] - exact[at]).abs() < 1e-9), "{count}");
            // As bytes, so that parts are not whole numbers.
            let mut all = place(&vec![0.0; count]);
            let bytes = fabric.share(count * 8, me);
            let own_part: Vec<u8> = own(9, count).iter().flat_map(|number| number.to_ne_bytes()).collect();
            let mut whole: Vec<u8> = vec![0; count * 8];
            whole[bytes.clone()].copy_from_slice(&own_part[bytes]);
            match &mut all {
                Place::Pool(memory) => assert_eq!(memory.slice().copy_from(&whole), whole.len()),
                Place::Own(numbers) => {
                    for (number, bytes) in numbers.iter_mut().zip(whole.chunks_exact(8)) {
                        *number = f64::from_ne_bytes(bytes.try_into().unwrap());
                    }
                }
            }
            fabric.allgather(all.all()).unwrap();
            assert!(all.numbers() == own(9, count), "{count}");
            fabric.barrier().unwrap();
            sums.numbers()
        });
        assert!(
            results.iter().all(|result| *result == results[0]),
            "the same bits everywhere: {size} {count}"
        );
        assert!(
            results[0].iter().zip(&exact).all(|(one, other)| (one - other).abs() < 1e-9),
            "{size} {count}"
        );
    }
}

#[test]
fn collectives_of_memory_of_pools() {
    for size in [1, 2, 3] {
        collectives(size, &LinkSettings::default(), |_| true);
    }
}

#[test]
fn collectives_of_other_memory() {
    collectives(2, &LinkSettings::default(), |_| false);
    collectives(3, &forced(Engine::Bounce), |_| false);
}

#[test]
fn collectives_where_some_have_memory_of_pools() {
    collectives(2, &LinkSettings::default(), |rank| rank == 1);
    collectives(3, &LinkSettings::default(), |rank| rank != 1);
}

#[test]
fn every_operation_of_every_kind_of_numbers() {
    ranks(2, &LinkSettings::default(), |fabric| {
        let me = fabric.rank();
        for operation in Operation::ALL {
            for element in umf_link::Element::ALL {
                let Ok(reduction) = Reduction::new(operation, element) else { continue };
                // Both have the same, so that what comes of it is known.
                let place = memory(80_000);
                place.slice().copy_from(&[0_u8; 80_000][..]);
                place.slice().copy_from(&[2_u8.pow(me as u32); 4][..]);
                fabric.allreduce(&place, reduction).unwrap();
                let mut first = [9_u8; 8];
                place.slice().copy_to(&mut first);
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
fn ranks_that_call_different_things_are_told() {
    let sum = Reduction::of::<f64>(Operation::Sum).unwrap();
    let max = Reduction::of::<f64>(Operation::Max).unwrap();
    for case in 0..4 {
        let results = ranks(2, &LinkSettings::default(), |fabric| {
            let mut numbers = vec![1.0; 10_000];
            let result = match (case, fabric.rank()) {
                (0, 0) => fabric.barrier(),
                (0 | 1, 1) | (1, 0) if case == 0 => fabric.allreduce(&mut numbers[..10], sum),
                (1, 0) => fabric.allreduce(&mut numbers[..], sum),
                (1, _) => fabric.allreduce(&mut numbers[..9000], sum),
                (2, 0) => fabric.allreduce(&mut numbers[..], sum),
                (2, _) => fabric.allreduce(&mut numbers[..], max),
                (_, 0) => fabric.bcast(0, &mut numbers[..20]),
                _ => fabric.bcast(0, &mut numbers[..10]),
            };
            let again = fabric.barrier();
            (result, again)
        });
        let is_mismatch = |result: &Result<(), Error>| matches!(result, Err(Error::Mismatch { .. }));
        assert!(results.iter().any(|(result, _)| is_mismatch(result)), "{case} {results:?}");
        for (result, again) in &results {
            let is_told = is_mismatch(result)
                || matches!(result, Err(Error::GivenUp { .. }))
                || case == 3 && result.is_ok();
            assert!(is_told && again.is_err(), "{case} {results:?}");
        }
    }
}

#[test]
fn what_is_wrong_with_a_job() {
    let name = format!("wrong-{}", std::process::id());
    for (rank, size) in [(2, 2), (0, 0), (0, 5000)] {
        assert!(matches!(Fabric::join(&name, rank, size), Err(Error::BadRank { .. })), "{rank} of {size}");
    }
    assert!(matches!(Fabric::join("", 0, 1), Err(Error::BadName { .. })));
    let mut first = Fabric::join(&name, 0, 2).unwrap();
    let taken = Fabric::join(&name, 0, 2).unwrap_err();
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(taken, Error::RankTaken { rank: 0, pid, .. } if pid == own), "{taken}");
    first.set_timeout(Some(Duration::from_millis(50)));
    for rank in [0, 2] {
        assert!(matches!(first.send(rank, 0, &[1]), Err(Error::BadRank { .. })));
    }
    let absent = first.send(1, 0, &[1]).unwrap_err();
    assert!(matches!(absent, Error::RankAbsent { rank: 1, .. }), "nobody is there: {absent}");
    assert!(matches!(first.barrier(), Err(Error::RankAbsent { rank: 1, .. })));
    assert!(matches!(first.barrier(), Err(Error::RankAbsent { .. })), "collectives are over");
    let mut other = Fabric::join(&name, 1, 3).unwrap();
    other.set_timeout(SECOND);
    first.set_timeout(SECOND);
    let refused = other.send(0, 0, &[1]).unwrap_err();
    assert!(matches!(refused, Error::OtherSize { theirs: 2, mine: 3 }), "{refused}");
    drop(other);
    // Its place is free, and messages go on.
    let mut other = Fabric::join(&name, 1, 2).unwrap();
    other.set_timeout(SECOND);
    other.send(0, 7, &[3]).unwrap();
    let mut byte = [0];
    assert_eq!(first.recv_any(7, &mut byte).unwrap().0, 1);
    let told = other.barrier().unwrap_err();
    assert!(matches!(told, Error::GivenUp { rank: 0 }), "{told}");
    drop(other);
    assert!(matches!(first.recv_any(7, &mut byte), Err(Error::Closed { .. })), "it is told once");
    let mut third = Fabric::join(&name, 1, 2).unwrap();
    third.set_timeout(SECOND);
    first.forget(1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| third.send(0, 8, &[4]).unwrap());
        assert_eq!(first.recv(1, 8, &mut byte).unwrap().length, 1);
    });
}

/// A rank that was there and went, before anybody had a link with it: all that wait for it are told, and a process in its place is met.
#[test]
fn a_rank_that_went_before_it_met_anybody() {
    let name = format!("unmet-{}", std::process::id());
    let join = |rank| {
        let mut fabric = Fabric::join(&name, rank, 3).unwrap();
        fabric.set_timeout(SECOND);
        fabric
    };
    // One that was there before it and one that came after it.
    let mut first = join(0);
    let went = join(1);
    let mut last = join(2);
    drop(went);
    let own = i32::try_from(std::process::id()).unwrap();
    let mut byte = [0];
    for fabric in [&mut first, &mut last] {
        let closed = Error::Closed { pid: own };
        assert_eq!(fabric.send(1, 0, &[1]).unwrap_err(), closed);
        assert_eq!(fabric.recv(1, 0, &mut byte).unwrap_err(), closed);
        assert_eq!(fabric.recv_any(0, &mut byte).unwrap_err(), closed);
        fabric.set_timeout(Some(Duration::from_millis(50)));
        assert!(matches!(fabric.recv_any(0, &mut byte), Err(Error::TimedOut { .. })), "it is told once");
        fabric.set_timeout(SECOND);
    }
    // Who forgets it waits for another one.
    first.forget(1).unwrap();
    first.set_timeout(Some(Duration::from_millis(50)));
    assert!(matches!(first.send(1, 0, &[1]), Err(Error::RankAbsent { rank: 1, milliseconds: 50, .. })));
    first.set_timeout(SECOND);
    let mut next = join(1);
    next.send(0, 7, &[2]).unwrap();
    next.send(2, 7, &[3]).unwrap();
    for (fabric, value) in [(&mut first, 2), (&mut last, 3)] {
        assert_eq!(fabric.recv_any(7, &mut byte).unwrap().0, 1);
        assert_eq!(byte[0], value);
    }
}

/// What a rank sent before it went is received first, also where its link is not taken in yet.
#[test]
fn what_came_before_the_end_is_received_first() {
    for round in 0..20 {
        let name = format!("late-{round}-{}", std::process::id());
        let mut stays = Fabric::join(&name, 0, 2).unwrap();
        stays.set_timeout(SECOND);
        let mut goes = Fabric::join(&name, 1, 2).unwrap();
        goes.set_timeout(SECOND);
        goes.send(0, 1, &[round]).unwrap();
        drop(goes);
        // Long enough that it looks after those whom it has not met.
        std::thread::sleep(Duration::from_millis(u64::from(round) * 3));
        let mut byte = [0];
        assert_eq!(stays.recv_any(1, &mut byte).unwrap().0, 1);
        assert_eq!(byte[0], round);
        assert!(matches!(stays.recv_any(1, &mut byte), Err(Error::Closed { .. })));
    }
}
