//! The gate that lets locks survive a fork.
//!
//! A child of a process with several threads has one of them. A lock that another thread held at the
//! fork stays locked in the child. So a fork must happen at a moment when no other thread is inside
//! of a lock. Each thread counts the locks that it is inside of, in a word of its own, and looks at the
//! gate before the first of them. The thread that forks closes the gate, fences all threads
//! (`membarrier(2)`), and waits until their words are 0. After the fork it opens the gate, in the
//! parent and in the child.
//!
//! Rules, each with the hang that follows without it:
//! 1. A thread counts itself, fences, looks at the gate, takes the lock. Inside of a lock it counts
//!    and does not look: else it waits for the gate, and the gate for it.
//! 2. The gate names the thread that closed it. That thread passes, and may close it again (`fork` in
//!    a handler of `pthread_atfork(3)`).
//! 3. A gate that stays closed for too long opens again, until the slow thread is outside or as much
//!    time has passed: else a thread in a long call under a lock stops all others, and two threads of
//!    which the one inside waits for the other one never go on.
//! 4. A thread that others wait for in other ways passes the gate before it begins that.
//! 5. A thread that sleeps on a lock is inside. A thread that waits for a condition is not.
//!
//! Limits: a thread that forks inside of a lock for which another thread waits (the other one is
//! inside and cannot leave); two threads that fork inside of locks; a thread without a word that forks
//! inside of a lock; raw `clone(2)`.

use core::sync::atomic::Ordering;

/// A word that threads share.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> usize;
    fn store(&self, value: usize, order: Ordering);
    fn add(&self, value: usize, order: Ordering) -> usize;
    fn sub(&self, value: usize, order: Ordering) -> usize;
    /// Replaces `current` by `new` (sequentially consistent); returns what was there.
    fn replace(&self, current: usize, new: usize) -> Result<(), usize>;
}

/// What the gate needs of the machine. loom's stands in for it in tests.
pub(crate) trait Machine {
    type Word: Word;
    /// How long a thread may keep a gate waiting that is closed for the first time.
    type Patience: Patience;

    /// A number of the calling thread, not 0, that it has in a forked child too.
    fn me() -> usize;
    /// The side of [`Machine::heavy`] that runs at each entry.
    fn light();
    /// Has all threads of the process pass a full fence.
    fn heavy();
    /// Sleeps until the word is woken, unless it has another value than `expected`. May return at
    /// any time.
    fn sleep(word: &Self::Word, expected: usize);
    /// Wakes all threads that sleep on the word.
    fn wake_all(word: &Self::Word);
    /// Runs `act`, which no signal handler of the calling thread interrupts.
    fn uninterrupted<T>(act: impl FnOnce() -> T) -> T;
}

/// A time span, measured from its start.
pub(crate) trait Patience: Sized {
    /// The first span, which starts now.
    fn start() -> Self;
    /// A span twice as long, which starts now.
    fn double(self) -> Self;
    /// The same span again.
    fn again(&mut self);
    /// Waits a moment. Returns false once the span is over.
    fn pause(&mut self) -> bool;
}

/// A gate. 0 in `owner` is open.
#[derive(Debug)]
pub(crate) struct Gate<W> {
    /// The thread that closed the gate.
    owner: W,
    /// How many forks, each begun inside of the last, it is closed for. Belongs to the owner.
    depth: W,
    /// 1 once no other thread is inside. Belongs to the owner.
    is_closed: W,
    /// How often the gate was opened. Threads sleep on it.
    openings: W,
    /// How many threads without a word are inside, and how often.
    others: W,
}

impl<W: Word> Gate<W> {
    pub(crate) const fn from_words(owner: W, depth: W, is_closed: W, openings: W, others: W) -> Self {
        Self { owner, depth, is_closed, openings, others }
    }

    /// Enters. `mine` is the calling thread's word.
    #[inline(always)]
    pub(crate) fn enter<M: Machine<Word = W>>(&self, mine: &W) {
        let inside = mine.load(Ordering::Relaxed);
        mine.store(inside + 1, Ordering::Relaxed);
        if inside == 0 {
            M::light();
            if self.owner.load(Ordering::Acquire) != 0 {
                self.enter_closed::<M>(mine);
            }
        }
    }

    /// Leaves.
    #[inline(always)]
    pub(crate) fn exit(&self, mine: &W) {
        mine.store(mine.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    #[cold]
    fn enter_closed<M: Machine<Word = W>>(&self, mine: &W) {
        let me = M::me();
        loop {
            // Before the owner: an opening in between is then seen.
            let openings = self.openings.load(Ordering::Acquire);
            let owner = self.owner.load(Ordering::Acquire);
            if owner == 0 || owner == me {
                return;
            }
            mine.store(0, Ordering::Release);
            M::sleep(&self.openings, openings);
            mine.store(1, Ordering::Relaxed);
            M::light();
        }
    }

    /// Enters without a word. If the thread is inside already, and another one is closing the gate,
    /// this waits until rule 3 opens it.
    #[cold]
    pub(crate) fn enter_without_word<M: Machine<Word = W>>(&self) {
        let me = M::me();
        loop {
            self.others.add(1, Ordering::SeqCst);
            M::light();
            let openings = self.openings.load(Ordering::Acquire);
            let owner = self.owner.load(Ordering::SeqCst);
            if owner == 0 || owner == me {
                return;
            }
            self.others.sub(1, Ordering::Release);
            M::sleep(&self.openings, openings);
        }
    }

    /// Leaves what [`Gate::enter_without_word`] entered.
    #[cold]
    pub(crate) fn exit_without_word(&self) {
        self.others.sub(1, Ordering::Release);
    }

    /// Closes the gate, for a fork by the calling thread. When this returns, no other thread is
    /// inside. `threads` yields the words of all threads that have one, and `mine` is the calling
    /// thread's.
    pub(crate) fn close<'w, M, I>(&self, mine: Option<&'w W>, threads: impl Fn() -> I)
    where
        M: Machine<Word = W>,
        I: Iterator<Item = &'w W>,
        W: 'w,
    {
        let me = M::me();
        let depth = self.take::<M>(me, None);
        // A fork inside of one that waits no more: other libraries' handlers ran since, and may hold
        // locks for which a thread would wait that this lets in.
        if self.is_closed.load(Ordering::Relaxed) != 0 {
            return;
        }
        let mut patience = M::Patience::start();
        'closed: loop {
            M::heavy();
            let is_mine = |word: &W| mine.is_some_and(|mine| core::ptr::eq(mine, word));
            for word in threads().filter(|word| !is_mine(word)) {
                if !self.wait_until_outside::<M>(word, &mut patience) {
                    patience = self.open_a_while::<M>(word, patience);
                    self.take::<M>(me, Some(depth));
                    continue 'closed;
                }
            }
            if !self.wait_until_outside::<M>(&self.others, &mut patience) {
                patience = self.open_a_while::<M>(&self.others, patience);
                self.take::<M>(me, Some(depth));
                continue 'closed;
            }
            self.is_closed.store(1, Ordering::Relaxed);
            return;
        }
    }

    /// Becomes the gate's owner, for one fork more, or for as many as `depth`. Returns for how many.
    fn take<M: Machine<Word = W>>(&self, me: usize, depth: Option<usize>) -> usize {
        loop {
            let openings = self.openings.load(Ordering::Acquire);
            let taken = M::uninterrupted(|| {
                let inside = match self.owner.replace(0, me) {
                    Ok(()) => 0,
                    Err(owner) if owner == me => self.depth.load(Ordering::Relaxed),
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

    /// Opens the gate until the slow thread is outside, or the time is over. The next time is twice
    /// as long.
    fn open_a_while<M: Machine<Word = W>>(&self, slow: &W, patience: M::Patience) -> M::Patience {
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

    /// The same in the child, which has no other thread. The others' words may count an entry that
    /// was waiting for the gate.
    pub(crate) fn open_in_child<'w, M, I>(&self, mine: Option<&'w W>, threads: impl Fn() -> I)
    where
        M: Machine<Word = W>,
        I: Iterator<Item = &'w W>,
        W: 'w,
    {
        for word in threads() {
            if !mine.is_some_and(|mine| core::ptr::eq(mine, word)) {
                word.store(0, Ordering::Relaxed);
            }
        }
        self.others.store(0, Ordering::Relaxed);
        self.open::<M>();
    }
}

#[cfg(test)]
mod model;
