//! The fork gate in loom: while it is closed no other thread is inside, and no thread deadlocks.

use core::cell::Cell;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::{Gate, GateWord, Machine, Ordering, Patience};

/// A word with its futex queue: comparing the word and going to sleep is one atomic step.
struct ModelWord {
    value: AtomicUsize,
    queue: Mutex<()>,
    woken: Condvar,
}

impl ModelWord {
    fn new() -> Self {
        Self { value: AtomicUsize::new(0), queue: Mutex::new(()), woken: Condvar::new() }
    }
}

impl GateWord for ModelWord {
    fn load(&self, order: Ordering) -> usize {
        self.value.load(order)
    }

    fn store(&self, value: usize, order: Ordering) {
        self.value.store(value, order);
    }

    fn add(&self, value: usize, order: Ordering) -> usize {
        self.value.fetch_add(value, order)
    }

    fn sub(&self, value: usize, order: Ordering) -> usize {
        self.value.fetch_sub(value, order)
    }

    fn replace(&self, current: usize, new: usize) -> Result<(), usize> {
        self.value.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }
}

loom::thread_local! {
    static ME: Cell<usize> = Cell::new(0);
}

/// loom's machine. `FENCE` says whether an entry fences, and `PAUSES` how often a forking thread
/// looks before it opens the gate again; 0 is for ever.
struct Loom<const FENCE: bool, const PAUSES: usize>;

struct Looks<const PAUSES: usize> {
    left: usize,
    span: usize,
}

impl<const PAUSES: usize> Patience for Looks<PAUSES> {
    fn start() -> Self {
        Self { left: PAUSES, span: PAUSES }
    }

    fn double(self) -> Self {
        Self { left: self.span * 2, span: self.span * 2 }
    }

    fn again(&mut self) {
        self.left = self.span;
    }

    fn pause(&mut self) -> bool {
        thread::yield_now();
        if PAUSES == 0 {
            return true;
        }
        self.left = self.left.saturating_sub(1);
        self.left != 0
    }
}

impl<const FENCE: bool, const PAUSES: usize> Machine for Loom<FENCE, PAUSES> {
    type Word = ModelWord;
    type Patience = Looks<PAUSES>;

    fn me() -> usize {
        ME.with(Cell::get)
    }

    fn light() {
        if FENCE {
            fence(Ordering::SeqCst);
        }
    }

    fn heavy() {
        fence(Ordering::SeqCst);
    }

    fn sleep(word: &ModelWord, expected: usize) {
        let queue = word.queue.lock().unwrap();
        if word.value.load(Ordering::Relaxed) == expected {
            drop(word.woken.wait(queue).unwrap());
        }
    }

    fn uninterrupted<T>(act: impl FnOnce() -> T) -> T {
        act()
    }

    fn wake_all(word: &ModelWord) {
        drop(word.queue.lock().unwrap());
        word.woken.notify_all();
    }
}

/// The gate, with a word for each thread and what a lock of each would guard.
struct Process {
    gate: Gate<ModelWord>,
    words: [ModelWord; 2],
    data: [UnsafeCell<u32>; 2],
    flag: ModelWord,
}

// SAFETY: loom tells of accesses to the cells at the same time, which is what they are there for.
unsafe impl Sync for Process {}

impl Process {
    fn new() -> Self {
        Self {
            gate: Gate::from_words(
                ModelWord::new(),
                ModelWord::new(),
                ModelWord::new(),
                ModelWord::new(),
                ModelWord::new(),
            ),
            words: [(); 2].map(|()| ModelWord::new()),
            data: [(); 2].map(|()| UnsafeCell::new(0)),
            flag: ModelWord::new(),
        }
    }

    fn change(&self, data: usize) {
        // SAFETY: only one thread is here, or loom ends the test.
        self.data[data].with_mut(|data| unsafe { *data += 1 });
    }

    /// What a thread does inside of a lock of its own.
    fn inside<M: Machine<Word = ModelWord>>(&self, number: usize, act: impl FnOnce()) {
        self.gate.enter::<M>(&self.words[number]);
        self.change(number);
        act();
        self.change(number);
        self.gate.exit(&self.words[number]);
    }

    /// A fork, which finds nothing being changed.
    fn fork<M: Machine<Word = ModelWord>>(&self, mine: Option<usize>) {
        let mine = mine.map(|number| &self.words[number]);
        self.gate.close::<M, _>(mine, || self.words.iter());
        (0..2).for_each(|data| self.change(data));
        self.gate.open::<M>();
    }
}

fn spawn(
    process: &Arc<Process>,
    number: usize,
    act: impl FnOnce(&Process) + 'static,
) -> thread::JoinHandle<()> {
    let process = Arc::clone(process);
    thread::spawn(move || {
        ME.with(|me| me.set(number));
        act(&process);
    })
}

fn explore(
    preemptions: usize,
    run: impl Fn(&Arc<Process>) -> Vec<thread::JoinHandle<()>> + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions + usize::from(cfg!(loom)));
    builder.check(move || {
        ME.with(|me| me.set(1));
        let process = Arc::new(Process::new());
        for thread in run(&process) {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_no_thread_is_inside_while_the_gate_is_closed() {
    type M = Loom<true, 0>;
    explore(3, |process| {
        let threads = (0..2).map(|number| {
            spawn(process, number + 2, move |process| {
                process.inside::<M>(number, || {
                    // A lock inside of a lock.
                    process.gate.enter::<M>(&process.words[number]);
                    process.gate.exit(&process.words[number]);
                });
            })
        });
        let threads = threads.collect();
        process.fork::<M>(None);
        threads
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_entry_without_a_fence_is_missed() {
    type M = Loom<false, 0>;
    explore(3, |process| {
        let thread = spawn(process, 2, |process| process.inside::<M>(0, || {}));
        process.fork::<M>(None);
        vec![thread]
    });
}

#[test]
fn loom_threads_without_words_are_waited_for() {
    type M = Loom<true, 0>;
    explore(3, |process| {
        let thread = spawn(process, 2, |process| {
            process.gate.enter_without_word::<M>();
            process.change(0);
            process.gate.exit_without_word();
        });
        process.fork::<M>(None);
        vec![thread]
    });
}

/// Rule 3. The thread inside waits for the other one, which waits for the gate.
#[test]
fn loom_a_gate_that_waits_too_long_opens() {
    type M = Loom<true, 1>;
    explore(2, |process| {
        let inside = spawn(process, 2, |process| {
            process.inside::<M>(0, || {
                while process.flag.load(Ordering::Acquire) == 0 {
                    M::sleep(&process.flag, 0);
                }
            });
        });
        let other = spawn(process, 3, |process| {
            process.inside::<M>(1, || {
                process.flag.store(1, Ordering::Release);
                M::wake_all(&process.flag);
            });
        });
        process.fork::<M>(None);
        vec![inside, other]
    });
}

#[test]
fn loom_two_threads_fork_in_turn() {
    type M = Loom<true, 0>;
    explore(2, |process| {
        let other = spawn(process, 2, |process| process.fork::<M>(Some(0)));
        process.fork::<M>(Some(1));
        vec![other]
    });
}

/// A fork that begins inside of another of the same thread, which may be inside of a lock itself.
#[test]
fn loom_forks_nest_and_may_begin_inside() {
    type M = Loom<true, 0>;
    explore(3, |process| {
        let other = spawn(process, 2, |process| process.inside::<M>(0, || {}));
        process.inside::<M>(1, || {
            let mine = Some(&process.words[1]);
            process.gate.close::<M, _>(mine, || process.words.iter());
            process.change(0);
            process.gate.close::<M, _>(mine, || process.words.iter());
            process.gate.enter::<M>(&process.words[1]);
            process.gate.exit(&process.words[1]);
            process.change(0);
            process.gate.open::<M>();
            process.change(0);
            process.gate.open::<M>();
        });
        vec![other]
    });
}

/// The second of two nested closes: handlers of others ran in between, and hold locks.
#[test]
fn loom_a_fork_inside_of_another_lets_no_thread_in() {
    type M = Loom<true, 1>;
    explore(2, |process| {
        let other = spawn(process, 2, |process| {
            process.inside::<M>(0, || _ = process.flag.add(1, Ordering::Relaxed));
        });
        let close = || process.gate.close::<M, _>(None, || process.words.iter());
        close();
        let entered = process.flag.load(Ordering::Relaxed);
        close();
        assert_eq!(process.flag.load(Ordering::Relaxed), entered);
        process.gate.open::<M>();
        process.gate.open::<M>();
        vec![other]
    });
}
