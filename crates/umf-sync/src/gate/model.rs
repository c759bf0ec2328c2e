//! The fork gate in loom: while it is closed, no other thread is inside, and no thread deadlocks.

use core::cell::Cell;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::{Gate, GateWord, Machine, Ordering, Patience};

/// A word with its futex queue: the comparison of the word and the sleep are one atomic step.
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

/// The machine in loom. With `FENCE`, entries fence. `PAUSES` is how often a forking thread polls
/// before it opens the gate again; 0 is for ever.
struct Loom<const FENCE: bool, const PAUSES: usize>;

/// A number of polls in place of a time.
struct Polls<const PAUSES: usize> {
    left: usize,
    span: usize,
}

impl<const PAUSES: usize> Patience for Polls<PAUSES> {
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
    type Patience = Polls<PAUSES>;

    fn thread_id() -> usize {
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

/// The gate, the count word of each thread, and the data that the lock of each thread guards.
struct Process {
    gate: Gate<ModelWord>,
    words: [ModelWord; 2],
    data: [UnsafeCell<u32>; 2],
    flag: ModelWord,
}

// SAFETY: loom detects concurrent accesses to the cells, and the test then fails.
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
        // SAFETY: loom fails the test if another thread accesses the cell.
        self.data[data].with_mut(|data| unsafe { *data += 1 });
    }

    /// Runs `act` while the thread holds its lock.
    fn inside<M: Machine<Word = ModelWord>>(&self, number: usize, act: impl FnOnce()) {
        self.gate.enter::<M>(&self.words[number]);
        self.change(number);
        act();
        self.change(number);
        self.gate.exit(&self.words[number]);
    }

    /// Forks. No data must be in change meanwhile.
    fn fork<M: Machine<Word = ModelWord>>(&self, this: Option<usize>) {
        let count = this.map(|number| &self.words[number]);
        self.gate.close::<M, _>(count, || self.words.iter());
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
                    // A nested lock.
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
fn loom_entry_without_a_fence_races_with_a_fork() {
    type M = Loom<false, 0>;
    explore(3, |process| {
        let thread = spawn(process, 2, |process| process.inside::<M>(0, || {}));
        process.fork::<M>(None);
        vec![thread]
    });
}

#[test]
fn loom_fork_waits_for_threads_without_a_count_word() {
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

/// Rule 3. The thread inside waits for the other thread, which waits for the gate.
#[test]
fn loom_gate_that_stays_closed_too_long_opens() {
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

/// A fork inside of another fork of the same thread, which holds a lock.
#[test]
fn loom_nested_fork_of_a_thread_inside_does_not_deadlock() {
    type M = Loom<true, 0>;
    explore(3, |process| {
        let other = spawn(process, 2, |process| process.inside::<M>(0, || {}));
        process.inside::<M>(1, || {
            let count = Some(&process.words[1]);
            process.gate.close::<M, _>(count, || process.words.iter());
            process.change(0);
            process.gate.close::<M, _>(count, || process.words.iter());
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

/// Between two nested closes, handlers of other libraries run and may hold locks.
#[test]
fn loom_nested_close_admits_no_thread() {
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
