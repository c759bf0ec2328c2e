//! [`Cache`]: a table of entries with an LRU order and limits.

use core::hash::{BuildHasher, Hash};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use intrusive_collections::{LinkedList, LinkedListAtomicLink, intrusive_adapter};
use umf_sync::{Lock, failpoint, fork};

use super::{CacheStatistics, Counters, LimitPolicy, Limits, Pin, Pins};
use crate::{Error, Result};

/// A value of a [`Cache`].
pub(crate) trait Cached {
    /// Called when the entry is removed from the table, under the lock of the shard: a look-up
    /// misses the entry only after this call. Returns the number of pins that end with the entry.
    /// Must be quick. Slow work belongs into `drop`, which runs later without the lock.
    fn on_unlink(&self) -> u64 {
        0
    }

    /// Returns whether no later look-up can use the value. Called under the lock of the shard.
    fn is_dead(&self) -> bool {
        false
    }
}

/// An entry. The table and the LRU list share its allocation.
#[derive(Debug)]
pub(crate) struct Entry<K, V> {
    link: LinkedListAtomicLink,
    key: K,
    number: u32,
    stamp: u64,
    bytes: u64,
    /// The cached value. Dropping it releases its resources.
    pub value: V,
}

impl<K, V> Entry<K, V> {
    /// Returns the key.
    pub(crate) const fn key(&self) -> &K {
        &self.key
    }

    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) const fn stamp(&self) -> u64 {
        self.stamp
    }
}

intrusive_adapter!(Adapter<K, V> = Arc<Entry<K, V>>: Entry<K, V> { link: LinkedListAtomicLink });

#[derive(Debug)]
struct Shard<K, V> {
    table: HashTable<Arc<Entry<K, V>>>,
    /// Most recently used first.
    order: LinkedList<Adapter<K, V>>,
}

/// A bounded cache, which never evicts entries in use.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    shards: Box<[Lock<Shard<K, V>>]>,
    hasher: DefaultHashBuilder,
    pins: Pins,
    limits: Limits,
    counters: Counters,
    next_stamp: AtomicU64,
    /// The numbers of entries and of bytes at which dead entries are evicted next.
    sweep_at: [AtomicU64; 2],
    /// Keys whose values are being created, so that only one thread creates each.
    in_flight: Lock<InFlight<K>>,
}

/// Keys whose values are being created, with a lock per key.
#[derive(Debug)]
struct InFlight<K> {
    key_locks: HashMap<K, Arc<KeyLock>>,
    /// [`fork::generation`] of the process that uses the locks.
    generation: u32,
}

/// The lock of a key whose value is being created.
#[derive(Debug, Default)]
struct KeyLock {
    lock: Mutex<()>,
    /// The thread that has the lock ([`thread_mark`]); 0 if no thread has it.
    holder: AtomicUsize,
}

impl KeyLock {
    /// Notes the thread that has the lock, until the guard is dropped.
    fn hold(&self, mark: usize) -> impl Drop + '_ {
        struct Held<'l>(&'l AtomicUsize);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        self.holder.store(mark, Ordering::Relaxed);
        Held(&self.holder)
    }
}

/// Returns a number that no other live thread has.
fn thread_mark() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    // A thread that is exiting has no mark, and creates no values that create others.
    MARK.try_with(|mark| core::ptr::from_ref(mark).addr()).unwrap_or(usize::MAX)
}

/// The value of this key is being created by the calling thread: a provider's function, called to
/// create it, asks for it again.
const RECURSION: Error = Error::Memory(umf_core::Error::InvalidArgument {
    what: "memory to export or open",
    why: "is being exported or opened by this thread: a provider's functions must not use the IPC handles of \
          memory that was allocated from that provider",
});

impl<K> InFlight<K> {
    fn key_locks(&mut self) -> &mut HashMap<K, Arc<KeyLock>> {
        let generation = fork::generation();
        if self.generation != generation {
            // The parent's threads may hold these locks, and do not run in this process.
            core::mem::forget(core::mem::take(&mut self.key_locks));
            self.generation = generation;
        }
        &mut self.key_locks
    }
}

/// A pin on an entry, removed when dropped.
#[derive(Debug)]
pub(crate) struct Pinned<'c, K: Hash + Eq + Clone, V: Cached> {
    cache: &'c Cache<K, V>,
    entry: Arc<Entry<K, V>>,
}

impl<K: Hash + Eq + Clone, V: Cached> Pinned<'_, K, V> {
    pub(crate) fn entry(&self) -> &Entry<K, V> {
        &self.entry
    }

    /// Transfers the pin to the caller.
    pub(crate) fn into_pin(self) -> Pin {
        let number = self.entry.number;
        self.cache.pins.pin(number);
        Pin::without_cell(number)
    }
}

impl<K: Hash + Eq + Clone, V: Cached> Drop for Pinned<'_, K, V> {
    fn drop(&mut self) {
        self.cache.pins.unpin(self.entry.number);
    }
}

/// A reservation of one entry and its bytes in the counters. Dropping it cancels it.
struct Reservation<'c, K: Hash + Eq + Clone, V: Cached> {
    cache: &'c Cache<K, V>,
    bytes: u64,
}

impl<K: Hash + Eq + Clone, V: Cached> Drop for Reservation<'_, K, V> {
    fn drop(&mut self) {
        self.cache.shrink(self.bytes);
    }
}

/// The most entries that an eviction checks in each shard under a soft limit.
const SOFT_SCAN: usize = 32;

/// The number of times that an eviction under a hard limit checks the shards one by one before it
/// locks all of them.
const HARD_SCANS: u32 = 4;

/// The entries and bytes by which the cache may grow beyond twice its live ones before dead ones
/// are evicted.
const SWEEP_SLACK: [u64; 2] = [16, 64 << 20];

impl<K: Hash + Eq + Clone, V: Cached> Cache<K, V> {
    /// Creates an empty cache with `shards` shards, a power of two.
    pub(crate) fn new(limits: Limits, shards: usize) -> Self {
        let shard = || Lock::new(Shard { table: HashTable::new(), order: LinkedList::new(Adapter::new()) });
        // No more shards than entries: an eviction would only look through empty ones.
        let limit = usize::try_from(limits.entries).unwrap_or(usize::MAX).max(1).checked_next_power_of_two();
        let shards = if limits.entries == 0 { shards } else { shards.min(limit.unwrap_or(shards)) };
        Self {
            shards: (0..shards.next_power_of_two().max(1)).map(|_| shard()).collect(),
            hasher: DefaultHashBuilder::default(),
            pins: Pins::new(),
            limits,
            counters: Counters::default(),
            next_stamp: AtomicU64::new(1),
            sweep_at: SWEEP_SLACK.map(AtomicU64::new),
            in_flight: Lock::new(InFlight { key_locks: HashMap::new(), generation: fork::generation() }),
        }
    }

    pub(crate) const fn pins(&self) -> &Pins {
        &self.pins
    }

    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn shard(&self, hash: u64) -> &Lock<Shard<K, V>> {
        // High bits, because hashbrown uses the low ones.
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    /// Returns the entry, pinned, and makes it the most recently used one.
    pub(crate) fn get(&self, key: &K) -> Option<Pinned<'_, K, V>> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        let shard = &mut *shard;
        let entry = Arc::clone(shard.table.find(hash, |entry| entry.key == *key)?);
        // SAFETY: an entry in the table is in the list of the same shard, and the lock is held.
        if let Some(linked) = unsafe { shard.order.cursor_mut_from_ptr(Arc::as_ptr(&entry)) }.remove() {
            shard.order.push_front(linked);
        }
        self.pins.pin(entry.number);
        Some(Pinned { cache: self, entry })
    }

    /// Calls `look` with the entry, without pinning it or changing its order.
    pub(crate) fn peek<T>(&self, key: &K, look: impl FnOnce(&Entry<K, V>) -> T) -> Option<T> {
        let hash = self.hasher.hash_one(key);
        let shard = self.shard(hash).lock();
        let entry = Arc::clone(shard.table.find(hash, |entry| entry.key == *key)?);
        drop(shard);
        Some(look(&entry))
    }

    /// Returns the entry, pinned. If there is none, one thread creates its value by `make`, and
    /// others wait for it. `bytes` counts against the limits.
    ///
    /// # Errors
    /// Those of `make`, and [`Error::LimitReached`] above a hard limit.
    pub(crate) fn get_or_insert_with(
        &self,
        key: &K,
        bytes: u64,
        make: impl FnOnce() -> Result<V>,
    ) -> Result<Pinned<'_, K, V>> {
        if let Some(found) = self.get(key) {
            Counters::count(&self.counters.table_hits);
            return Ok(found);
        }
        let key_lock = Arc::clone(self.in_flight.lock().key_locks().entry(key.clone()).or_default());
        let mark = thread_mark();
        let result = if key_lock.holder.load(Ordering::Relaxed) == mark {
            Err(RECURSION)
        } else {
            let _key_lock = key_lock.lock.lock().unwrap_or_else(PoisonError::into_inner);
            let _holder = key_lock.hold(mark);
            match self.get(key) {
                Some(found) => {
                    Counters::count(&self.counters.table_hits);
                    Ok(found)
                }
                None => self.make(key, bytes, make),
            }
        };
        let mut in_flight = self.in_flight.lock();
        drop(key_lock);
        // Only the map has the lock: no other thread waits for the key.
        if in_flight.key_locks().get(key).is_some_and(|key_lock| Arc::strong_count(key_lock) == 1) {
            in_flight.key_locks().remove(key);
        }
        drop(in_flight);
        result
    }

    fn make(&self, key: &K, bytes: u64, make: impl FnOnce() -> Result<V>) -> Result<Pinned<'_, K, V>> {
        Counters::count(&self.counters.misses);
        self.sweep();
        let reservation = self.reserve(bytes)?;
        // Allocated before the value, so that nothing fails after `make`: a value leaves the cache
        // only by `unlink`.
        let number = self.pins.allocate()?;
        let value = make().inspect_err(|_| self.pins.release(number))?;
        let stamp = self.next_stamp.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry {
            link: LinkedListAtomicLink::new(),
            key: key.clone(),
            number,
            stamp,
            bytes,
            value,
        });
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        self.pins.pin(number);
        self.pins.stamp(number, stamp);
        shard.table.insert_unique(hash, Arc::clone(&entry), |entry| self.hasher.hash_one(&entry.key));
        shard.order.push_front(Arc::clone(&entry));
        failpoint!("cache.inserted");
        core::mem::forget(reservation);
        Ok(Pinned { cache: self, entry })
    }

    /// Evicts idle dead entries when the cache has doubled since the last call, so that the cost
    /// per miss is constant. Without limits nothing else evicts them.
    fn sweep(&self) {
        let sizes =
            || [&self.counters.entries, &self.counters.bytes].map(|size| size.load(Ordering::Relaxed));
        let due = sizes().iter().zip(&self.sweep_at).any(|(size, at)| *size >= at.load(Ordering::Relaxed));
        // One thread swaps the threshold and sweeps. The others continue.
        if !due || self.sweep_at[0].swap(u64::MAX, Ordering::Relaxed) == u64::MAX {
            return;
        }
        self.evict_idle(|entry| entry.value.is_dead());
        for ((size, at), slack) in sizes().into_iter().zip(&self.sweep_at).zip(SWEEP_SLACK).rev() {
            at.store(size.saturating_mul(2).saturating_add(slack), Ordering::Relaxed);
        }
    }

    /// Subtracts one entry from the counters.
    fn shrink(&self, bytes: u64) {
        self.counters.entries.fetch_sub(1, Ordering::Relaxed);
        self.counters.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reserves one more entry in the counters, and evicts idle entries until it fits.
    fn reserve(&self, bytes: u64) -> Result<Reservation<'_, K, V>> {
        let limits = &self.limits;
        self.counters.entries.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        let reservation = Reservation { cache: self, bytes };
        if limits.bytes != 0 && bytes > limits.bytes {
            // It does not fit even into an empty cache.
            return match limits.policy {
                LimitPolicy::Soft => Ok(reservation),
                LimitPolicy::Hard => Err(Error::LimitReached {
                    what: limits.what,
                    limit: limits.bytes,
                    setting: limits.setting,
                }),
            };
        }
        let is_over = || {
            let entries = self.counters.entries.load(Ordering::Relaxed);
            let bytes = self.counters.bytes.load(Ordering::Relaxed);
            let too_many = limits.entries != 0 && entries > limits.entries;
            let too_large = limits.bytes != 0 && bytes > limits.bytes;
            (too_many, too_large)
        };
        let mut scans = 0;
        loop {
            if is_over() == (false, false) {
                return Ok(reservation);
            }
            let is_hard = limits.policy == LimitPolicy::Hard;
            if self.evict_one(is_hard) {
                scans = 0;
                continue;
            }
            if !is_hard {
                return Ok(reservation);
            }
            // While this thread goes from shard to shard, other threads can make entries idle in
            // shards that it has left.
            scans += 1;
            if scans < HARD_SCANS {
                std::thread::yield_now();
                continue;
            }
            // With all shards locked no thread looks up or removes an entry.
            let mut shards: Vec<_> = self.shards.iter().map(Lock::lock).collect();
            let (too_many, too_large) = is_over();
            if !too_many && !too_large {
                return Ok(reservation);
            }
            let evicted = shards.iter_mut().find_map(|shard| self.evict_from(shard, true));
            if evicted.is_none() {
                // Cancelled while the shards are locked: of several threads here, only as many fail
                // as necessary.
                drop(reservation);
                let limit = if too_many { limits.entries } else { limits.bytes };
                return Err(Error::LimitReached { what: limits.what, limit, setting: limits.setting });
            }
            drop(shards);
        }
    }

    /// Evicts the least recently used idle entry of the first shard that has one. `thorough` checks
    /// all entries. Returns whether there was one.
    fn evict_one(&self, thorough: bool) -> bool {
        let start = self.counters.evictions.load(Ordering::Relaxed) as usize;
        let mut shards = (0..self.shards.len()).map(|step| &self.shards[(start + step) % self.shards.len()]);
        // The entry is dropped without the lock.
        shards.any(|shard| {
            let evicted = self.evict_from(&mut shard.lock(), thorough);
            evicted.is_some()
        })
    }

    /// Evicts the least recently used idle entry of a shard. The caller drops the returned entry
    /// without the lock.
    fn evict_from(&self, shard: &mut Shard<K, V>, thorough: bool) -> Option<Arc<Entry<K, V>>> {
        // Two rounds. The first one clears the reference bits and spares entries that had them.
        let round = if thorough { shard.table.len() } else { shard.table.len().min(SOFT_SCAN) };
        for checked in 0..2 * round {
            let entry = shard.order.pop_back()?;
            let is_spared = self.pins.take_referenced(entry.number) && checked < round;
            if !is_spared && self.close(&entry) {
                self.unlink(shard, &entry);
                Counters::count(&self.counters.evictions);
                return Some(entry);
            }
            shard.order.push_front(entry);
        }
        None
    }

    /// Closes an entry for further pins, if it is idle. The caller holds its shard's lock.
    fn close(&self, entry: &Entry<K, V>) -> bool {
        self.pins.close(entry.number, entry.stamp)
    }

    /// Removes an entry from the table, after the caller has removed it from the list.
    fn unlink(&self, shard: &mut Shard<K, V>, entry: &Entry<K, V>) {
        let hash = self.hasher.hash_one(&entry.key);
        if let Ok(found) = shard.table.find_entry(hash, |other| other.number == entry.number) {
            found.remove();
        }
        failpoint!("cache.unlinking");
        for _ in 0..entry.value.on_unlink() {
            self.pins.unpin(entry.number);
        }
        self.pins.release(entry.number);
        self.shrink(entry.bytes);
        failpoint!("cache.unlinked");
    }

    /// Evicts the entry with this key if it is idle and `condition` holds. Returns whether it did.
    pub(crate) fn evict_if(&self, key: &K, condition: impl FnOnce(&V) -> bool) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        let shard_mut = &mut *shard;
        let Some(entry) = shard_mut.table.find(hash, |entry| entry.key == *key).cloned() else {
            return false;
        };
        if !condition(&entry.value) || !self.close(&entry) {
            return false;
        }
        // SAFETY: an entry in the table is in the list of the same shard, and the lock is held.
        unsafe { shard_mut.order.cursor_mut_from_ptr(Arc::as_ptr(&entry)) }.remove();
        self.unlink(shard_mut, &entry);
        drop(shard);
        Counters::count(&self.counters.evictions);
        true
    }

    /// Removes an entry, even if it is in use. Its number is reused after its pins are gone.
    pub(crate) fn remove(&self, key: &K) -> Option<Arc<Entry<K, V>>> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        let shard = &mut *shard;
        let entry = Arc::clone(shard.table.find(hash, |entry| entry.key == *key)?);
        self.pins.stamp(entry.number, 0);
        // SAFETY: an entry in the table is in the list of the same shard, and the lock is held.
        unsafe { shard.order.cursor_mut_from_ptr(Arc::as_ptr(&entry)) }.remove();
        self.unlink(shard, &entry);
        Some(entry)
    }

    /// Evicts all idle entries for which `condition` holds, and returns their number.
    pub(crate) fn evict_idle(&self, mut condition: impl FnMut(&Entry<K, V>) -> bool) -> usize {
        let mut evicted = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let shard = &mut *shard;
            let mut cursor = shard.order.front_mut();
            let mut gone = Vec::new();
            while let Some(entry) = cursor.get() {
                if condition(entry) && self.close(entry) {
                    gone.extend(cursor.remove());
                } else {
                    cursor.move_next();
                }
            }
            for entry in &gone {
                self.unlink(shard, entry);
                Counters::count(&self.counters.evictions);
            }
            evicted.extend(gone);
        }
        // The values are dropped here, without the locks.
        evicted.len()
    }

    /// Returns the entries for which `condition` holds. Their values exist as long as they are
    /// returned, even if they are evicted.
    pub(crate) fn entries(&self, condition: impl Fn(&Entry<K, V>) -> bool) -> Vec<Arc<Entry<K, V>>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().table.iter().filter(|entry| condition(entry)).map(Arc::clone));
        }
        found
    }

    /// Calls `look` with every entry, in no particular order, under the lock of its shard.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&Entry<K, V>)) {
        for shard in &self.shards {
            shard.lock().order.iter().for_each(&mut look);
        }
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        let mut in_use = 0;
        self.for_each(|entry| in_use += u64::from(self.pins.sum(entry.number) != 0));
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStatistics {
            hits: 0,
            table_hits: load(&self.counters.table_hits),
            misses: load(&self.counters.misses),
            stale: load(&self.counters.stale),
            evictions: load(&self.counters.evictions),
            entries: load(&self.counters.entries),
            in_use,
            bytes: load(&self.counters.bytes),
            fds: 0,
        }
    }
}

impl<K, V> Drop for Cache<K, V> {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            let mut shard = shard.lock();
            shard.table.clear();
            shard.order.clear();
        }
    }
}
