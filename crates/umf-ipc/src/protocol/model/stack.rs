//! Numbers that are given back and taken.

use loom::sync::atomic::AtomicU32;

use super::super::stack::{pop, push};
use super::*;

type ModelLink = ModelWord<AtomicU32>;

fn link() -> ModelLink {
    ModelWord::over(AtomicU32::new(0))
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
        let pair = || [link(), link()];
        let used = [Memory::new(), Memory::new()];
        let shared = Arc::new(Shared { top: link(), links: pair(), used });
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
