//! What is received is combined with what is there.

use umf_link::{Destination, Engine, Error, LinkSettings, Operation, Reduction, Source};

use crate::messages::{forced, memory, pair, pair_with};

fn sum() -> Reduction {
    Reduction::of::<f32>(Operation::Sum).unwrap()
}

fn sums(into: &mut [f32]) -> Destination<'_> {
    Destination::from(into).combined(sum()).unwrap()
}

fn floats(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|place| ((place * 7 + seed) % 1000) as f32).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// By one engine (or whichever is chosen), from memory of a pool or not, into such or not.
fn by(engine: Option<Engine>, carried: Engine, is_pool: bool) {
    let settings = || engine.map_or_else(LinkSettings::default, forced);
    let (mut one, mut other) = pair_with([settings(), settings()]);
    if carried == Engine::Cma
        && let Err(why) = other.engines().cma()
    {
        println!("umf-skip: combining by {carried}: {why}");
        return;
    }
    let counts = if carried == Engine::Inline { [2, 1000] } else { [1500, 500_001] };
    for (round, count) in counts.into_iter().enumerate() {
        let (theirs, mut mine) = (floats(count, round), floats(count, 99));
        let expected: Vec<f32> = mine.iter().zip(&theirs).map(|(one, other)| one + other).collect();
        let (from, into) = (memory(count * 4), memory(count * 4));
        from.slice().copy_from(&bytes(&theirs)[..]);
        into.slice().copy_from(&bytes(&mine)[..]);
        std::thread::scope(|scope| {
            scope.spawn(|| if is_pool { one.send(1, &from) } else { one.send(1, &theirs[..]) }.unwrap());
            let target = if is_pool { Destination::from(&into) } else { Destination::from(&mut mine[..]) };
            let received = other.recv(1, target.combined(sum()).unwrap()).unwrap();
            assert_eq!((received.length, received.engine), (count * 4, carried));
        });
        if is_pool {
            let mut result = vec![0; count * 4];
            into.slice().copy_to(&mut result);
            assert!(result == bytes(&expected), "{carried} {count}");
        } else {
            assert!(mine == expected, "{carried} {count}");
        }
    }
    let seen = other.statistics();
    assert_eq!((seen.refused_cma, seen.refused_mapped), (0, 0));
}

#[test]
fn each_engine_combines() {
    by(None, Engine::Inline, false);
    by(Some(Engine::Bounce), Engine::Bounce, false);
    by(Some(Engine::Cma), Engine::Cma, false);
    by(Some(Engine::Cma), Engine::Cma, true);
    by(Some(Engine::Mapped), Engine::Mapped, true);
    by(None, Engine::Mapped, true);
    // The sender cannot combine.
    by(Some(Engine::Both), Engine::Mapped, true);
}

#[test]
fn partial_element_is_refused_and_message_stays() {
    let (mut one, mut other) = pair();
    let mut numbers = [1.0_f32; 4];
    let refused = Destination::from(&mut [0_u8; 7][..]).combined(sum()).unwrap_err();
    assert!(matches!(refused, Error::PartialElement { length: 7, size: 4 }), "{refused}");
    one.send(1, &[0; 6]).unwrap();
    assert!(matches!(other.recv(1, sums(&mut numbers)), Err(Error::PartialElement { length: 6, size: 4 })));
    one.send(2, &[0; 20]).unwrap();
    assert!(matches!(other.recv(2, sums(&mut numbers)), Err(Error::Truncated { length: 20, capacity: 16 })));
    one.send(3, &[1.5_f32, 2.5][..]).unwrap();
    assert_eq!(other.recv(3, sums(&mut numbers)).unwrap().length, 8);
    assert_eq!(numbers, [2.5, 3.5, 1.0, 1.0], "what is not sent is left alone");
    assert_eq!(other.recv(1, &mut [0; 8]).unwrap().length, 6);
}

#[test]
fn number_split_over_list_entries_is_combined() {
    let (mut one, mut other) = pair();
    let (theirs, mut mine) = (floats(5000, 3), floats(5000, 4));
    let expected: Vec<f32> = mine.iter().zip(&theirs).map(|(one, other)| one + other).collect();
    let from = memory(20_000 + 6 * 2000);
    let sent = bytes(&theirs);
    // Pieces of 10 bytes with gaps.
    let pieces = || (0..2000).map(|number| from.part(number * 16, 10).unwrap());
    for (piece, chunk) in pieces().zip(sent.chunks(10)) {
        piece.slice().copy_from(chunk);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| one.send(1, Source::list(pieces().take(1000))).unwrap());
        other.recv(1, Destination::from(&mut mine[..2500]).combined(sum()).unwrap()).unwrap();
    });
    std::thread::scope(|scope| {
        // More than are told: through bounce buffers.
        scope.spawn(|| one.send(2, Source::list(pieces().skip(1000).chain(pieces().take(200)))).unwrap());
        mine.extend([0.0; 500]);
        let received = other.recv(2, Destination::from(&mut mine[2500..]).combined(sum()).unwrap()).unwrap();
        assert_eq!(received.engine, Engine::Bounce);
    });
    assert!(mine[..5000] == expected && mine[5000..] == theirs[..500]);
}

#[test]
fn message_lost_while_combined_is_partly_combined() {
    for is_combined in [true, false] {
        let (mut one, mut other) = pair_with([forced(Engine::Bounce), forced(Engine::Bounce)]);
        let (theirs, mut mine) = (floats(1 << 18, 1), floats(1 << 18, 2));
        let target = Destination::from(&mut mine[..]);
        let target = if is_combined { target.combined(sum()).unwrap() } else { target };
        let mut sending = one.start_send(1, &theirs[..]).unwrap();
        let mut receiving = other.start_recv(1, target);
        // It asks, buffers are filled, and emptied.
        assert_eq!(other.test_recv(&mut receiving).unwrap(), None);
        assert!(!one.test_send(&mut sending).unwrap());
        assert_eq!(other.test_recv(&mut receiving).unwrap(), None);
        drop(sending);
        let after = other.test_recv(&mut receiving);
        if is_combined {
            assert!(matches!(after, Err(Error::PartlyCombined { .. })), "{after:?}");
        } else {
            assert_eq!(after.unwrap(), None, "the next one is received instead");
        }
        drop(receiving);
        one.send(1, &[5.0_f32][..]).unwrap();
        assert_eq!(other.recv(1, &mut [0; 4]).unwrap().length, 4, "the link goes on");
        assert_eq!(other.statistics().withdrawn, 1);
    }
}
