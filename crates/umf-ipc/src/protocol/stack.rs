//! A stack of numbers that any thread pushes on without waiting, and one thread at a time takes from.

use core::sync::atomic::{AtomicU32, Ordering};

/// A link, or the top: a number plus one, 0 for none. In loom's model its atomics stand in.
pub(crate) trait Link {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn replace(&self, current: u32, new: u32, order: Ordering) -> Result<(), u32>;
}

impl Link for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn replace(&self, current: u32, new: u32, order: Ordering) -> Result<(), u32> {
        self.compare_exchange_weak(current, new, order, Ordering::Relaxed).map(drop)
    }
}

/// Pushes a number, whose link nobody else writes: who pushes it owns it.
#[inline]
pub(crate) fn push<L: Link>(top: &L, number: u32, link: &L) {
    let mut first = top.load(Ordering::Relaxed);
    loop {
        link.store(first, Ordering::Relaxed);
        // Release: whoever takes it sees its link, and what was done with what it stands for.
        match top.replace(first, number + 1, Ordering::Release) {
            Ok(()) => return,
            Err(now) => first = now,
        }
    }
}

/// Takes the number that was pushed last. By one thread at a time: what is on top does not go and come back meanwhile.
pub(crate) fn pop<'l, L: Link + 'l>(top: &L, link: impl Fn(u32) -> Option<&'l L>) -> Option<u32> {
    let mut first = top.load(Ordering::Acquire);
    loop {
        let number = first.checked_sub(1)?;
        let next = link(number)?.load(Ordering::Relaxed);
        match top.replace(first, next, Ordering::Acquire) {
            Ok(()) => return Some(number),
            // (Another one is on top now, or none of this happened. Acquire, for its link.)
            Err(_) => first = top.load(Ordering::Acquire),
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use loom::sync::Arc;

    impl Link for loom::sync::atomic::AtomicU32 {
        fn load(&self, order: Ordering) -> u32 {
            self.load(order)
        }

        fn store(&self, value: u32, order: Ordering) {
            self.store(value, order);
        }

        fn replace(&self, current: u32, new: u32, order: Ordering) -> Result<(), u32> {
            self.compare_exchange(current, new, order, Ordering::Relaxed).map(drop)
        }
    }

    /// Two threads push, one takes what it sees and pushes it again: each number is there once in the end, with what was written
    /// before it was pushed.
    #[test]
    fn loom_what_is_pushed_is_taken_once() {
        use loom::sync::atomic::AtomicU32;
        static BOTH: AtomicBool = AtomicBool::new(false);
        static NONE: AtomicBool = AtomicBool::new(false);
        struct Shared {
            top: AtomicU32,
            links: [AtomicU32; 2],
            written: [AtomicU32; 2],
        }
        loom::model(|| {
            let zeros = || [AtomicU32::new(0), AtomicU32::new(0)];
            let shared = Arc::new(Shared { top: AtomicU32::new(0), links: zeros(), written: zeros() });
            let pushers: Vec<_> = (0..2_u32)
                .map(|number| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || {
                        shared.written[number as usize].store(7, Ordering::Relaxed);
                        push(&shared.top, number, &shared.links[number as usize]);
                    })
                })
                .collect();
            let take = || {
                let number = pop(&shared.top, |number| shared.links.get(number as usize))?;
                assert_eq!(shared.written[number as usize].load(Ordering::Relaxed), 7);
                Some(number)
            };
            match (take(), take()) {
                (Some(one), Some(other)) => {
                    assert_ne!(one, other);
                    BOTH.store(true, Ordering::Relaxed);
                    push(&shared.top, other, &shared.links[other as usize]);
                    push(&shared.top, one, &shared.links[one as usize]);
                }
                (Some(one), None) => push(&shared.top, one, &shared.links[one as usize]),
                (None, Some(other)) => push(&shared.top, other, &shared.links[other as usize]),
                (None, None) => NONE.store(true, Ordering::Relaxed),
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
            let mut rest: Vec<u32> = core::iter::from_fn(take).collect();
            rest.sort_unstable();
            assert_eq!(rest, [0, 1]);
        });
        assert!(BOTH.load(Ordering::Relaxed) && NONE.load(Ordering::Relaxed), "the model never got there");
    }
}
