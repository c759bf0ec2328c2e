//! Numbers that are given back and taken.

use loom::sync::atomic::AtomicU32;

use super::super::stack::{Link, pop, push};
use super::*;

/// With a store beside each load: see [`ModelWord`].
#[derive(Debug)]
struct ModelLink {
    value: AtomicU32,
    loads: AtomicU32,
}

impl ModelLink {
    fn new() -> Self {
        Self { value: AtomicU32::new(0), loads: AtomicU32::new(0) }
    }
}

impl Link for ModelLink {
    fn load(&self, order: Ordering) -> u32 {
        self.loads.store(0, Ordering::Relaxed);
        self.value.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.value.store(value, order);
    }

    fn replace(&self, current: u32, new: u32, order: Ordering) -> Result<(), u32> {
        self.value.compare_exchange(current, new, order, Ordering::Relaxed).map(drop)
    }
}

/// Two threads give numbers back, a third takes what it finds and gives it back: each is there once in the end, and whoever
/// takes one comes after whoever gave it back.
#[test]
fn loom_what_is_given_back_is_taken_once() {
    struct Shared {
        top: ModelLink,
        links: [ModelLink; 2],
        used: [Memory; 2],
    }
    impl Shared {
        fn give_back(&self, number: u32) {
            self.used[number as usize].make();
            push(&self.top, number, &self.links[number as usize]);
        }

        fn take(&self) -> Option<u32> {
            let number = pop(&self.top, |number| self.links.get(number as usize))?;
            self.used[number as usize].make();
            Some(number)
        }
    }
    let reached = Reached::default();
    let in_model = reached.clone();
    large_model(move || {
        let pair = || [ModelLink::new(), ModelLink::new()];
        let used = [Memory::new(), Memory::new()];
        let shared = Arc::new(Shared { top: ModelLink::new(), links: pair(), used });
        let givers: Vec<_> = (0..2)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.give_back(number))
            })
            .collect();
        let taken: Vec<u32> = [shared.take(), shared.take()].into_iter().flatten().collect();
        in_model.reach(["none", "one", "both"][taken.len()]);
        for number in taken {
            shared.give_back(number);
        }
        for giver in givers {
            giver.join().unwrap();
        }
        let mut rest: Vec<u32> = core::iter::from_fn(|| shared.take()).collect();
        rest.sort_unstable();
        assert_eq!(rest, [0, 1]);
    });
    reached.check(["none", "one", "both"]);
}
