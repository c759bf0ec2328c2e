//! Who may touch what without a lock or an atomic exchange, and how others come in.
//!
//! Two things belong to one thread until somebody else wants them: its cache, and the *life* of the blocks in a slab that it
//! took for itself, or of a large block that it took and freed before: as long as only that thread frees them, taking a life is a
//! load and a store. (An atomic exchange costs twenty cycles, which is as much as all the rest of a free.)
//!
//! The thread says that it is *inside* by a plain store, [`ThreadCache::enter`], looks whether it may, and says by
//! another store that it has left. Somebody else first writes that the thread may not any more (for each thread, and for all on
//! their most common paths at one place, the pool's gate), then has the kernel
//! fence all threads ([`umf_sync::fence::heavy`]), then waits until the thread is not inside: from there on it stays
//! out, and everything that it did is seen. So of two threads that free one block at one time one succeeds, and
//! trimming reaches what other threads keep, at the cost of a microsecond to the one who asks.
//!
//! One thread at a time reaches into others, under a lock that nobody takes while inside, or while holding
//! another; while inside, a thread waits for short locks only, and runs no code of others.

#[cfg(test)]
mod model;
mod protocol;

use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

use umf_sync::fence::{heavy, light};
use umf_sync::fork::{Entry, Outer};
use umf_sync::thread;

use crate::SlabPool;
use crate::pool::FENCED;
use crate::span::Span;
use crate::thread_cache::ThreadCache;

use protocol::Door;
pub(crate) use protocol::UNBIASED;

/// What a span's owner is when it is thread number `index`.
#[inline]
pub(crate) const fn thread_word(index: u32) -> u32 {
    index + 1
}

/// The calling thread is inside its cache until this is dropped.
pub(crate) struct Inside<'a> {
    cache: &'a ThreadCache,
}

impl<'a> Inside<'a> {
    #[inline(always)]
    pub(crate) fn cache(&self) -> &'a ThreadCache {
        self.cache
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        protocol::leave(self.cache);
    }
}

impl Door for ThreadCache {
    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) && !self.lost.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set_busy(&self, busy: bool, order: Ordering) {
        self.busy.store(busy, order);
    }

    fn set_pending(&self, pending: bool, order: Ordering) {
        self.pending.store(pending, order);
    }

    #[inline(always)]
    fn light(fenced: bool) {
        if fenced { fence(Ordering::SeqCst) } else { light() }
    }

    fn heavy() {
        heavy();
    }

    fn pause(turn: u32) {
        match turn {
            0..100 => core::hint::spin_loop(),
            100..200 => std::thread::yield_now(),
            // It may have no processor before this thread sleeps.
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

impl ThreadCache {
    /// Enters, by the thread whose cache this is; `None` while somebody else reaches in. `fenced`: the kernel fences nobody.
    #[inline(always)]
    pub(crate) fn enter(&self, fenced: bool) -> Option<Inside<'_>> {
        self.debug_outside();
        self.enter_if(fenced, || !self.pending.load(Ordering::Acquire))
    }

    /// A thread enters its cache once at a time. (That of threads without a number is nobody's: it has nothing and takes nothing.)
    #[inline(always)]
    pub(crate) fn debug_outside(&self) {
        debug_assert!(!self.busy.load(Ordering::Relaxed), "a thread enters its cache once at a time");
    }

    /// Enters where the kernel fences threads, by one who looks by himself whether he may, with [`Ordering::Acquire`] and at what is
    /// closed before others reach in.
    #[inline(always)]
    pub(crate) fn enter_if(&self, fenced: bool, may: impl FnOnce() -> bool) -> Option<Inside<'_>> {
        let may = protocol::come_in(self, fenced, may);
        let inside = Inside { cache: self };
        may.then_some(inside)
    }
}

/// As [`Inside`], where locks are taken: the thread passes the gate of forks first, since others wait
/// for it while it is inside.
pub(crate) struct InsideWithLocks<'a> {
    // Left in this order.
    _inside: Inside<'a>,
    _no_fork: Entry<Outer>,
}

impl SlabPool {
    /// Enters the calling thread's cache, and waits where others reach into it.
    pub(crate) fn inside<'a>(&self, cache: &'a ThreadCache) -> InsideWithLocks<'a> {
        let no_fork = Entry::new();
        let fenced = self.gates.load(Ordering::Relaxed) & FENCED != 0;
        loop {
            if let Some(inside) = cache.enter(fenced) {
                return InsideWithLocks { _inside: inside, _no_fork: no_fork };
            }
            drop(self.outsiders.lock());
        }
    }

    /// From here on lives in the span are taken by atomic exchange. The calling thread is not inside.
    #[cold]
    pub(crate) fn share_life(&self, span: &Span) {
        if span.bias.load(Ordering::Acquire) == UNBIASED {
            return;
        }
        let _outsider = self.outsiders.lock();
        let owner = span.bias.load(Ordering::Relaxed);
        if owner == UNBIASED {
            return;
        }
        let Some(cache) = self.caches.get(owner - 1) else { return };
        let own = thread::current().is_some_and(|own| thread_word(own.get()) == owner);
        if own {
            return self.caches.disown(span);
        }
        let forget = || {
            cache.forget(span);
            if self.is_large(span.class()) {
                cache.trust().revoke();
            } else {
                cache.measure(span.class()).revoked.fetch_add(1, Ordering::Relaxed);
            }
        };
        let set_owner = |owner| span.bias.store(owner, Ordering::Release);
        protocol::share(cache, set_owner, (|| self.close_gate(), forget, || self.open_gate()));
    }

    /// Shows the caches of all other threads, with their threads kept out. `look` calls no provider.
    pub(crate) fn reach_all(&self, mut look: impl FnMut(u32, &ThreadCache)) {
        let _outsider = self.outsiders.lock();
        let own = thread::current().map(thread::ThreadIndex::get);
        let others = || {
            (0..thread::end())
                .filter(|&index| own != Some(index))
                .filter_map(|index| Some((index, self.caches.get(index)?)))
                .filter(|(_, cache)| !cache.lost.load(Ordering::Relaxed) && cache.used().next().is_some())
        };
        if others().next().is_none() {
            return;
        }
        // A thread that comes to have a number meanwhile is not kept out, and not looked at.
        let end = others().last().map_or(0, |(index, _)| index + 1);
        let others = || others().take_while(|&(index, _)| index < end);
        protocol::keep_out(others().map(|(_, cache)| cache), || self.close_gate());
        for (index, cache) in others().filter(|(_, cache)| cache.pending.load(Ordering::Relaxed)) {
            protocol::await_leaving(cache);
            look(index, cache);
            protocol::let_in(cache);
        }
        self.open_gate();
    }
}
