//! The fork gate: the protocol that lets locks survive a fork.
//!
//! A forked child has one thread. A lock that another thread held at the fork stays locked in the
//! child for ever. So a fork must happen while no other thread holds a lock.
//!
//! Each thread counts the locks that it holds or waits for in its own *count word*. A thread whose
//! count is above 0 is *inside*. Before its first lock it checks the gate. The forking thread
//! closes the gate, fences all threads (`membarrier(2)`), and waits until every count word is 0.
//! After the fork it opens the gate, in the parent and in the child.
//!
//! Rules, each with the deadlock that it prevents:
//! 1. A thread counts itself, fences, checks the gate, then takes the lock. A thread that is
//!    already inside does not check: it would wait for the gate while the forking thread waits for
//!    it.
//! 2. The gate stores the thread that closed it. That thread passes, and may close the gate again
//!    (`fork` in a handler of `pthread_atfork(3)`).
//! 3. A gate that stays closed too long opens again, until the slow thread is outside or the same
//!    time has passed. Otherwise a long call under a lock stops all other threads, and a thread
//!    inside that waits for a thread at the gate never leaves.
//! 4. A thread on which other threads wait by other means (a condition, a counter) passes the gate
//!    before it begins.
//! 5. A thread that sleeps on a lock is inside. A thread that waits for a condition is outside.
//!
//! Not covered: a thread that forks while it holds a lock that another thread waits for (the
//! waiting thread is inside and cannot leave); two threads that both fork while they hold locks; a
//! thread without a count word that forks while it holds a lock; raw `clone(2)`.

use core::sync::atomic::Ordering;

/// An atomic word of a gate.
pub(crate) trait GateWord {
    fn load(&self, order: Ordering) -> usize;
    fn store(&self, value: usize, order: Ordering);
    fn add(&self, value: usize, order: Ordering) -> usize;
    fn sub(&self, value: usize, order: Ordering) -> usize;
    /// Replaces `current` by `new`, sequentially consistent. The error is the value found instead.
    fn replace(&self, current: usize, new: usize) -> Result<(), usize>;
}

/// The services of the machine that a gate uses. The tests replace it by loom's.
pub(crate) trait Machine {
    type Word: GateWord;
    /// The time that the forking thread waits for threads inside.
    type Patience: Patience;

    /// Returns the id of the calling thread: not 0, and the same in a forked child.
    fn thread_id() -> usize;
    /// Fences cheaply; pairs with [`Machine::heavy`]. Runs at each entry.
    fn light();
    /// Makes all threads of the process pass a full fence.
    fn heavy();
    /// Sleeps on the word unless its value differs from `expected`. May return spuriously.
    fn sleep(word: &Self::Word, expected: usize);
    /// Wakes all threads that sleep on the word.
    fn wake_all(word: &Self::Word);
    /// Runs `act` with the signals of the calling thread blocked.
    fn uninterrupted<T>(act: impl FnOnce() -> T) -> T;
}

/// A time span, measured from its start.
pub(crate) trait Patience: Sized {
    /// Returns the first span, which starts now.
    fn start() -> Self;
    /// Returns a span twice as long, which starts now.
    fn double(self) -> Self;
    /// Starts the same span again.
    fn again(&mut self);
    /// Waits a moment. Returns false once the span is over.
    fn pause(&mut self) -> bool;
}

/// A gate. It is open if `owner` is 0.
#[derive(Debug)]
pub(crate) struct Gate<W> {
    /// The thread that closed the gate; 0 if it is open.
    owner: W,
    /// The number of nested forks that the gate is closed for. Written by the owner alone.
    depth: W,
    /// 1 once no other thread is inside. Written by the owner alone.
    is_closed: W,
    /// The number of times that the gate was opened. Threads sleep on it.
    openings: W,
    /// The count word that threads without one of their own share.
    others: W,
}

impl<W: GateWord> Gate<W> {
    pub(crate) const fn from_words(owner: W, depth: W, is_closed: W, openings: W, others: W) -> Self {
        Self { owner, depth, is_closed, openings, others }
    }

    /// Enters the gate. `count` is the count word of the calling thread.
    #[inline(always)]
    pub(crate) fn enter<M: Machine<Word = W>>(&self, count: &W) {
        let inside = count.load(Ordering::Relaxed);
        count.store(inside + 1, Ordering::Relaxed);
        if inside == 0 {
            M::light();
            if self.owner.load(Ordering::Acquire) != 0 {
                self.enter_closed::<M>(count);
            }
        }
    }

    /// Exits the gate.
    #[inline(always)]
    pub(crate) fn exit(&self, count: &W) {
        count.store(count.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    #[cold]
    fn enter_closed<M: Machine<Word = W>>(&self, count: &W) {
        let this = M::thread_id();
        loop {
            // Loaded before `owner`, so that an opening in between ends the sleep below.
            let openings = self.openings.load(Ordering::Acquire);
            let owner = self.owner.load(Ordering::Acquire);
            if owner == 0 || owner == this {
                return;
            }
            count.store(0, Ordering::Release);
            M::sleep(&self.openings, openings);
            count.store(1, Ordering::Relaxed);
            M::light();
        }
    }

    /// Enters with the shared count word. If the calling thread is already inside and another
    /// thread is closing the gate, this waits until rule 3 opens it.
    #[cold]
    pub(crate) fn enter_without_word<M: Machine<Word = W>>(&self) {
        let this = M::thread_id();
        loop {
            self.others.add(1, Ordering::SeqCst);
            M::light();
            let openings = self.openings.load(Ordering::Acquire);
            let owner = self.owner.load(Ordering::SeqCst);
            if owner == 0 || owner == this {
                return;
            }
            self.others.sub(1, Ordering::Release);
            M::sleep(&self.openings, openings);
        }
    }

    /// Exits after [`Gate::enter_without_word`].
    #[cold]
    pub(crate) fn exit_without_word(&self) {
        self.others.sub(1, Ordering::Release);
    }

    /// Closes the gate for a fork by the calling thread. When this returns, no other thread is
    /// inside. `threads` yields the count words of all threads that have one, and `count` is the
    /// calling thread's.
    pub(crate) fn close<'w, M, I>(&self, count: Option<&'w W>, threads: impl Fn() -> I)
    where
        M: Machine<Word = W>,
        I: Iterator<Item = &'w W>,
        W: 'w,
    {
        let this = M::thread_id();
        let depth = self.take::<M>(this, None);
        // A nested fork of a gate that is fully closed does not wait again: fork handlers of other
        // libraries have run since and may hold locks that a thread let in here would wait for.
        if self.is_closed.load(Ordering::Relaxed) != 0 {
            return;
        }
        let mut patience = M::Patience::start();
        'closed: loop {
            M::heavy();
            let is_own = |word: &W| count.is_some_and(|count| core::ptr::eq(count, word));
            for word in threads().filter(|word| !is_own(word)) {
                if !self.wait_until_outside::<M>(word, &mut patience) {
                    patience = self.open_for_a_while::<M>(word, patience);
                    self.take::<M>(this, Some(depth));
                    continue 'closed;
                }
            }
            if !self.wait_until_outside::<M>(&self.others, &mut patience) {
                patience = self.open_for_a_while::<M>(&self.others, patience);
                self.take::<M>(this, Some(depth));
                continue 'closed;
            }
            self.is_closed.store(1, Ordering::Relaxed);
            return;
        }
    }

    /// Makes the calling thread the owner of the gate, and sets `depth`: to the given value, or to
    /// one more than it was. Returns it.
    fn take<M: Machine<Word = W>>(&self, this: usize, depth: Option<usize>) -> usize {
        loop {
            let openings = self.openings.load(Ordering::Acquire);
            let taken = M::uninterrupted(|| {
                let inside = match self.owner.replace(0, this) {
                    Ok(()) => 0,
                    Err(owner) if owner == this => self.depth.load(Ordering::Relaxed),
                    Err(_) => return None,
                };
                let depth = depth.unwrap_or(inside + 1);
                self.depth.store(depth, Ordering::Relaxed);
                Some(depth)
            });
            match taken {
                Some(depth) => return depth,
                None => M::sleep(&self.openings, openings),
            }
        }
    }

    fn wait_until_outside<M: Machine<Word = W>>(&self, word: &W, patience: &mut M::Patience) -> bool {
        while word.load(Ordering::Acquire) != 0 {
            if !patience.pause() {
                return false;
            }
        }
        true
    }

    /// Opens the gate until the slow thread is outside or the time is over. Doubles the time for
    /// the next attempt.
    fn open_for_a_while<M: Machine<Word = W>>(&self, slow: &W, patience: M::Patience) -> M::Patience {
        self.set_open::<M>();
        let mut patience = patience.double();
        while slow.load(Ordering::Acquire) != 0 && patience.pause() {}
        patience.again();
        patience
    }

    fn set_open<M: Machine<Word = W>>(&self) {
        self.is_closed.store(0, Ordering::Relaxed);
        self.owner.store(0, Ordering::Release);
        self.openings.add(1, Ordering::Release);
        M::wake_all(&self.openings);
    }

    /// Ends one [`Gate::close`] of the calling thread, in the parent.
    pub(crate) fn open<M: Machine<Word = W>>(&self) {
        M::uninterrupted(|| {
            let depth = self.depth.load(Ordering::Relaxed);
            self.depth.store(depth - 1, Ordering::Relaxed);
            if depth == 1 {
                self.set_open::<M>();
            }
        });
    }

    /// Ends one [`Gate::close`] in the child, which has one thread. Resets the count words of all
    /// other threads: they may count an entry that was waiting for the gate.
    pub(crate) fn open_in_child<'w, M, I>(&self, count: Option<&'w W>, threads: impl Fn() -> I)
    where
        M: Machine<Word = W>,
        I: Iterator<Item = &'w W>,
        W: 'w,
    {
        for word in threads() {
            if !count.is_some_and(|count| core::ptr::eq(count, word)) {
                word.store(0, Ordering::Relaxed);
            }
        }
        self.others.store(0, Ordering::Relaxed);
        self.open::<M>();
    }
}

#[cfg(test)]
mod model;
