//! The epoch in loom: the writer waits for every reader that saw the unlinked object.

use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::thread;

use umf_sync::model::{ModelWord, Reached, explore};

use super::{Ordering, Shared, begin, end, wait_for};

#[test]
fn loom_writer_waits_for_readers_of_the_unlinked_object() {
    struct Model {
        words: [ModelWord; 2],
        is_there: AtomicBool,
        is_freed: AtomicBool,
    }
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(3, None, move || {
        let model = Arc::new(Model {
            words: [ModelWord::new(0), ModelWord::new(0)],
            is_there: AtomicBool::new(true),
            is_freed: AtomicBool::new(false),
        });
        let visitors: Vec<_> = (0..2)
            .map(|me: usize| {
                let (model, reached) = (Arc::clone(&model), in_model.clone());
                thread::spawn(move || {
                    begin(&model.words[me], 1);
                    if model.is_there.load(Ordering::Acquire) {
                        assert!(!model.is_freed.load(Ordering::Relaxed), "in use and gone");
                        reached.reach("seen");
                    } else {
                        reached.reach("gone");
                    }
                    end(&model.words[me], 2);
                })
            })
            .collect();
        model.is_there.store(false, Ordering::Release);
        <ModelWord>::heavy_fence();
        model.words.iter().for_each(|word| wait_for(word, |word| word == 1));
        model.is_freed.store(true, Ordering::Relaxed);
        visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
    });
    reached.check(["seen", "gone"]);
}
