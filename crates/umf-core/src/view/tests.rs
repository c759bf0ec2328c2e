//! Compares views with slices of the same content.

use std::sync::atomic::Ordering;

use super::*;

/// Returns a view of a vector.
fn view<T: Plain>(memory: &mut Vec<T>) -> View<'_, T> {
    // SAFETY: the vector is borrowed mutably as long as the view is used.
    unsafe { View::new(memory.as_mut_ptr(), memory.len()) }.unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 7 + place / 256) as u8).collect()
}

#[test]
fn copies_are_exact_at_every_length_and_alignment() {
    let lengths = (0..200).chain([511, 512, 513, 1023, 1024, 1025, 1100, 5000]);
    for len in lengths {
        for (from, into) in [(0, 0), (1, 0), (0, 1), (3, 3), (5, 2), (8, 9)] {
            let mut source = content(len + 16);
            let mut local = vec![0xee; len + 16];
            let copied =
                view(&mut source).range(from..from + len).unwrap().copy_to(&mut local[into..into + len]);
            assert_eq!(copied, len);
            assert_eq!(local[into..into + len], content(len + 16)[from..from + len]);
            assert!(local[..into].iter().chain(&local[into + len..]).all(|&byte| byte == 0xee));
            let mut target = vec![0xee; len + 16];
            view(&mut target).range(into..).unwrap().copy_from(&content(len));
            assert_eq!(target[into..into + len], content(len));
            assert!(target[..into].iter().chain(&target[into + len..]).all(|&byte| byte == 0xee));
        }
    }
}

#[test]
fn copies_between_overlapping_views_are_memmove() {
    for len in [0, 1, 63, 64, 700, 1024, 4000] {
        for distance in [0, 1, 7, 64, 900, 3000] {
            let mut expected = content(len + distance);
            for (from, into) in [(0, distance), (distance, 0)] {
                let mut memory = expected.clone();
                let whole = view(&mut memory);
                let target = whole.range(into..into + len).unwrap();
                assert_eq!(whole.range(from..from + len).unwrap().copy_to_view(target), len);
                expected.copy_within(from..from + len, into);
                assert_eq!(memory, expected, "{len} bytes from {from} to {into}");
            }
        }
    }
}

/// Reads and writes elements of one type by each method.
fn check_elements<T: Plain + PartialEq + fmt::Debug>(values: &[T]) {
    let mut memory = vec![values[0]; values.len()];
    {
        let view = view(&mut memory);
        for (index, &value) in values.iter().enumerate() {
            view.set(index, value).unwrap();
            assert_eq!(view.get(index), Some(value));
        }
        assert_eq!(view.get(values.len()), None);
        assert!(matches!(view.set(values.len(), values[0]), Err(Error::InvalidArgument { .. })));
        assert_eq!(view.to_vec(), values);
        assert_eq!(view.iter().collect::<Vec<_>>(), values);
        assert_eq!(view.into_iter().len(), values.len());
        let mut by_next = Vec::new();
        for value in &view {
            by_next.push(value);
        }
        assert_eq!(by_next, values);
        assert_eq!(view.read_only().iter().skip(1).last(), values[1..].last().copied());
        view.fill(values[1]);
    }
    assert!(memory.iter().all(|value| *value == values[1]));
}

#[test]
fn elements_of_each_type_are_read_and_written() {
    check_elements(&(0..3000).map(|n| n as u8).collect::<Vec<_>>());
    check_elements(&(0..3000).map(|n| -n as i16).collect::<Vec<_>>());
    check_elements(&(0..3000).map(|n| n as f32 * 0.25).collect::<Vec<_>>());
    check_elements(&(0..3000).map(|n| f64::from(n) * -0.125).collect::<Vec<_>>());
    check_elements(&(0..300).map(|n| u128::MAX - n).collect::<Vec<_>>());
    check_elements(&(0..300_u16).map(|n| [n, n + 1, n + 2]).collect::<Vec<_>>());
    check_elements(&(0..300).map(|n| [n as f32; 3]).collect::<Vec<_>>());
    // Larger than the buffer of an iterator.
    check_elements(&(0..5).map(|n| [n as u64; 200]).collect::<Vec<_>>());
    check_elements(&(0..5).map(|n| core::num::Wrapping(n * 1000)).collect::<Vec<_>>());
}

#[test]
fn ranges_and_casts_are_bounds_checked() {
    let mut memory = content(64).chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let words = view(&mut memory);
    let bytes = words.cast::<u8>().unwrap();
    assert_eq!((bytes.len(), bytes.to_vec()), (64, content(64)));
    assert_eq!(bytes.range(3..=5).unwrap().to_vec(), content(64)[3..6]);
    assert_eq!(bytes.range(..).unwrap().len(), 64);
    assert!(bytes.range(64..).unwrap().is_empty());
    assert!(bytes.range(60..65).is_none() && bytes.range(65..).is_none());
    #[expect(clippy::reversed_empty_ranges, reason = "a range that a caller may pass")]
    let reversed = bytes.range(5..4);
    assert!(reversed.is_none() && bytes.range(..=usize::MAX).is_none());
    // Only complete elements.
    assert_eq!(bytes.range(8..31).unwrap().cast::<u64>().unwrap().len(), 2);
    assert!(matches!(
        bytes.range(4..).unwrap().cast::<u64>(),
        Err(Error::BadAlignment { align }) if align == 8
    ));
    assert_eq!(bytes.range(4..).unwrap().cast::<[u8; 8]>().unwrap().len(), 7);
    assert_eq!(words.range(1..2).unwrap().get(0), words.get(1));
    // SAFETY: refused.
    assert!(unsafe { View::<u32>::new(core::ptr::null_mut(), 1) }.is_err());
}

#[test]
fn threads_publish_data_by_an_atomic() {
    const ROUNDS: u64 = 10_000;
    let mut memory = vec![0_u64; 100];
    let view = view(&mut memory);
    let flag = view.atomic(0).unwrap();
    assert!(view.atomic(100).is_none());
    let data = view.range(1..).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                while flag.load(Ordering::Acquire) != 2 * round - 2 {
                    std::thread::yield_now();
                }
                data.fill(round);
                flag.store(2 * round - 1, Ordering::Release);
            }
        });
        // All rounds run, so that the other thread ends.
        let seen = (1..=ROUNDS).filter(|round| {
            while flag.load(Ordering::Acquire) != 2 * round - 1 {
                std::thread::yield_now();
            }
            let all = data.iter().all(|value| value == *round);
            flag.store(2 * round, Ordering::Release);
            all
        });
        assert_eq!(seen.count() as u64, ROUNDS);
    });
}

#[test]
fn words_are_not_torn() {
    let mut memory = vec![0_u64; 2];
    let view = view(&mut memory);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                view.set(1, u64::MAX).unwrap();
                view.set(1, 0).unwrap();
            }
        });
        // Until this thread has seen enough writes of the other.
        let (mut whole, mut changes, mut before) = (true, 0, 0);
        while whole && changes < 1_000 {
            let value = view.get(1).unwrap();
            whole = matches!(value, 0 | u64::MAX);
            changes += usize::from(value != before);
            before = value;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(whole);
    });
}
