//! Slots in loom's model: what is read was written by one, and a slot never goes back.

use std::sync::Arc;

use loom::sync::atomic::fence;
use loom::thread;

use crate::model::{ModelWord, Reached, explore};

use super::{Ordering, Word, read, write};

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.value.store(value, order);
    }

    fn take(&self, from: u64, to: u64) -> bool {
        self.value.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

#[test]
fn loom_a_slot_is_read_whole_and_never_goes_back() {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(3, None, move || {
        let slot = Arc::new((ModelWord::new(), [ModelWord::new(), ModelWord::new()]));
        let writers: Vec<_> = [1_u64, 2]
            .into_iter()
            .map(|position| {
                let (slot, reached) = (Arc::clone(&slot), in_model.clone());
                thread::spawn(move || {
                    let wrote = write(&slot.0, &slot.1, position, [position, position * 10]);
                    reached.reach(if wrote { "written" } else { "given up" });
                })
            })
            .collect();
        let mut last = 0;
        for _ in 0..2 {
            match read(&slot.0, &slot.1) {
                Some((position, words)) => {
                    assert_eq!(words, [position, position * 10], "of two writers");
                    assert!(position >= last, "it went back");
                    last = position;
                    in_model.reach(if position == 1 { "first" } else { "second" });
                }
                None => in_model.reach("nothing"),
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let (position, _) = read(&slot.0, &slot.1).unwrap();
        assert!(position == 1 || position == 2);
    });
    reached.check(["written", "given up", "first", "second", "nothing"]);
}
