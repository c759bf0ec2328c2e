//! What goes back to the provider unasked: what is free beyond so many bytes, and what lay unused for so long.
//!
//! Nobody watches all the time. Bytes are looked at when threads have given blocks to the shared store that amount to a part of
//! the bound, age at most once per time that is set, both where a thread is on a slow path anyway; or by a thread in the
//! background, if the settings ask for it (`tidier`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use umf_core::Result;
use umf_os::clock;
use umf_sync::chunks::Chunks;

use crate::aging::Seen;
use crate::{SlabPool, SlabSettings, tidier};

/// So many bytes come back, at least, before anybody looks.
const LEAST_SLACK: u64 = 64 << 10;

/// The policy, and where it stands.
pub(crate) struct Policy {
    is_on: bool,
    /// The most bytes that may be free; 0: any number.
    most: u64,
    /// How long memory may lie unused, in ms; 0: for ever.
    age: u64,
    /// Bytes that came back since somebody looked.
    returned: AtomicU64,
    /// Bytes that were free, more than may be, and could not be given back.
    stuck: AtomicU64,
    /// When ages are looked at next.
    due: AtomicU64,
    /// Somebody is giving memory back.
    at_work: AtomicBool,
    /// The thread in the background counts this pool.
    in_background: AtomicBool,
    /// What each thread's bins were used for when ages were looked at.
    pub(crate) seen: Chunks<Seen>,
}

/// The calling thread gives memory back until this is dropped, and looks again then
/// ([`SlabPool::look_again`]): a thread that found it at work gave blocks and left.
struct AtWork<'a>(&'a AtomicBool);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        // An exchange, not a store: it sees what threads that found this one at work have counted
        // before.
        self.0.swap(false, Ordering::AcqRel);
    }
}

impl Policy {
    pub(crate) fn new(settings: &SlabSettings) -> Self {
        let age = u64::try_from(settings.release_after.as_millis()).unwrap_or(u64::MAX);
        let age = if settings.release_after.is_zero() { 0 } else { age.max(1) };
        Self {
            is_on: settings.max_cached != 0 || age != 0,
            most: settings.max_cached,
            age,
            returned: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            due: AtomicU64::new(0),
            at_work: AtomicBool::new(false),
            in_background: AtomicBool::new(false),
            seen: Chunks::new(),
        }
    }

    /// Who was at work in the parent is not there in a forked child.
    pub(crate) fn forked(&self) {
        self.at_work.store(false, Ordering::Relaxed);
    }

    /// From now on the thread in the background looks, if `background`.
    pub(crate) fn begin_in(&self, background: bool) {
        if background && !self.in_background.swap(true, Ordering::Relaxed) {
            tidier::begin();
        }
    }

    /// From now on it does not.
    pub(crate) fn end(&self) {
        if self.in_background.swap(false, Ordering::Relaxed) {
            tidier::done();
        }
    }

    /// How often somebody in the background has to look.
    pub(crate) fn period(&self) -> Duration {
        const LONGEST: u64 = 1000;
        Duration::from_millis(if self.age == 0 { 100 } else { (self.age / 2).clamp(1, LONGEST) })
    }

    fn begin(&self) -> Option<AtWork<'_>> {
        (!self.at_work.swap(true, Ordering::AcqRel)).then(|| AtWork(&self.at_work))
    }

    /// Whether these free bytes are more than may be free.
    pub(crate) fn is_beyond(&self, free: u64) -> bool {
        self.most != 0 && free > self.most
    }

    /// Whether so much came back since somebody looked, of `returned` bytes, that it is time to
    /// look.
    fn is_much(&self, returned: u64) -> bool {
        // Where more than may be free could not be given back, a 32nd of that has to come first.
        let slack = (self.most / 8).max(self.stuck.load(Ordering::Relaxed) / 32);
        self.most != 0 && returned >= slack.max(LEAST_SLACK)
    }
}

fn now() -> u64 {
    u64::try_from(clock::coarse().as_millis()).unwrap_or(u64::MAX)
}

impl SlabPool {
    /// So many bytes came back to the shared store, or a thread is on its slow path. It is not inside, and holds no lock.
    #[inline]
    pub(crate) fn mind_policy(&self, bytes: usize) {
        if self.policy.is_on {
            self.follow_policy(bytes);
        }
    }

    #[cold]
    fn follow_policy(&self, bytes: usize) {
        let policy = &self.policy;
        if policy.most != 0 && bytes != 0 {
            let returned = policy.returned.fetch_add(bytes as u64, Ordering::AcqRel) + bytes as u64;
            if policy.is_much(returned) {
                self.stay_below();
            }
        }
        if policy.age != 0 {
            self.expire_if_due(now());
        }
        if self.settings.background {
            tidier::see_to_it();
        }
    }

    /// Follows the policy now; yields how many bytes went.
    pub(crate) fn tidy_now(&self) -> Result<usize> {
        let before = self.reserve.bytes();
        self.upstream.poll();
        self.tidy_unpolled();
        Ok(usize::try_from(before.saturating_sub(self.reserve.bytes())).unwrap_or(usize::MAX))
    }

    /// The same without letting go of what is held: for those who must not drop what others own.
    pub(crate) fn tidy_unpolled(&self) {
        if self.policy.most != 0 {
            self.stay_below();
        }
        if self.policy.age != 0 {
            self.expire_if_due(now());
        }
    }

    /// If more is free than may be, gives it back, unless another thread is at work: that one looks
    /// again.
    fn stay_below(&self) {
        if let Some(at_work) = self.policy.begin() {
            self.give_excess();
            drop(at_work);
            self.look_again();
        }
    }

    /// After work: does what threads that found this one at work have left.
    fn look_again(&self) {
        while self.policy.is_much(self.policy.returned.load(Ordering::Acquire))
            && let Some(at_work) = self.policy.begin()
        {
            self.give_excess();
            drop(at_work);
        }
    }

    fn give_excess(&self) {
        let policy = &self.policy;
        // What comes back from here on counts again. What came before is in the sums below.
        policy.returned.swap(0, Ordering::AcqRel);
        if self.reserve.bytes() <= policy.most || self.is_frozen() {
            return;
        }
        if self.sum_up().cached_bytes <= policy.most {
            return policy.stuck.store(0, Ordering::Relaxed);
        }
        let keep = usize::try_from(policy.most - policy.most / 8).unwrap_or(usize::MAX);
        // What a provider does not take back stays with us.
        let _ = self.release_shared(keep, self.ahead.floor());
        if self.sum_up().cached_bytes > policy.most {
            let _ = self.release_above(keep, self.ahead.floor());
        }
        let left = self.sum_up().cached_bytes;
        policy.stuck.store(if left > policy.most { left } else { 0 }, Ordering::Relaxed);
    }

    /// Looks at ages, if it is time to.
    pub(crate) fn expire_if_due(&self, now: u64) {
        let policy = &self.policy;
        if now < policy.due.load(Ordering::Relaxed) {
            return;
        }
        // One of those who come here at one time looks.
        let Some(at_work) = policy.begin() else { return };
        if now >= policy.due.load(Ordering::Relaxed) {
            policy.due.store(now.saturating_add(policy.age), Ordering::Relaxed);
            self.expire();
        }
        drop(at_work);
        self.look_again();
    }
}

#[cfg(test)]
mod tests;
