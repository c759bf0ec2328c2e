//! The statistics area of a ledger: counters of caches, leases and pools, in two rings of records.
//! All words are numbers or bytes of names.

use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::statistics::PoolStatistics;
use umf_core::{Pool, ProviderKind};
use umf_runtime::tracker;

use super::ring::{Ring, RingShape};
use crate::CacheStatistics;

/// Words before the two rings: version, words per pool, the process's name, time of creation.
pub(crate) const FIXED_WORDS: usize = 8;
pub(crate) const VERSION: u64 = 1;
/// The ring of the counters of caches and leases.
pub(crate) const CACHES: RingShape = RingShape { records: 2, words: 32 };
/// The most pools that are listed.
pub(crate) const MAX_LISTED_POOLS: usize = 64;
const POOLS_HEADER: usize = 7;
const POOL: usize = 12;
const NAME: usize = 4;
/// The ring of the counters of pools.
pub(crate) const POOLS: RingShape =
    RingShape { records: 2, words: 1 + POOLS_HEADER + MAX_LISTED_POOLS * POOL };
/// Words of the area.
pub(crate) const SIZE: usize = FIXED_WORDS + CACHES.size() + POOLS.size();

const EXPORTER: u64 = 1;
const IMPORTER: u64 = 2;

/// The counters of an exporter or importer, to be published.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PublishedCounters {
    pub exporter: Option<CacheStatistics>,
    pub importer: Option<CacheStatistics>,
    /// Leases that other processes have on memory of this one.
    pub leases: u64,
    /// Bytes that were freed and are held until their last lease ends.
    pub held_bytes: u64,
    /// Importers that have rows in the lease table.
    pub importers: u64,
    /// Handles that this process has sent, and whose claims it has not noticed yet.
    pub in_transit: u64,
}

/// The statistics area of this process's ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatisticsArea<'m> {
    facts: &'m [AtomicU64],
    caches: Ring<'m>,
    pools: Ring<'m>,
}

impl<'m> StatisticsArea<'m> {
    /// Returns the area in `words`: [`SIZE`] words that are zero or were an area before.
    pub(crate) fn new(words: &'m [AtomicU64]) -> Option<Self> {
        let (facts, rest) = words.split_at_checked(FIXED_WORDS)?;
        let (caches, rest) = rest.split_at_checked(CACHES.size())?;
        Some(Self { facts, caches: Ring::new(caches, CACHES)?, pools: Ring::new(rest, POOLS)? })
    }

    /// Writes the words that do not change. Called before another process can open the ledger.
    pub(crate) fn write_fixed(self, name: &str, started: u64) {
        store(&self.facts[0..1], [VERSION]);
        store(&self.facts[1..2], [POOL as u64]);
        store(&self.facts[2..4], text::<2>(name));
        store(&self.facts[4..5], [started]);
        self.caches.write_header();
        self.pools.write_header();
    }

    /// Writes a record of the counters of caches and leases.
    pub(crate) fn write_caches(self, time: u64, counters: &PublishedCounters) {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        self.caches.write(|words| {
            let flags =
                flag(counters.exporter.is_some(), EXPORTER) | flag(counters.importer.is_some(), IMPORTER);
            store(&words[..2], [time, flags]);
            store(&words[2..11], counters.exporter.unwrap_or_default().words());
            store(&words[11..20], counters.importer.unwrap_or_default().words());
            let rest = [counters.leases, counters.held_bytes, counters.importers, counters.in_transit];
            store(&words[20..24], rest);
        });
    }

    /// Writes a record of the counters of all pools of this process. Takes locks of pools: the
    /// caller must not hold one.
    pub(crate) fn write_pools(self, time: u64) {
        self.pools.write(|words| {
            let (header, pools) = words.split_at(POOLS_HEADER);
            let (mut all, mut listed) = (0, 0);
            tracker::for_each_pool(|pool| {
                all += 1;
                if let Some(words) = pools.chunks_exact(POOL).nth(listed) {
                    store_pool(words, pool);
                    listed += 1;
                }
            });
            store(&header[..3], [time, all, listed as u64]);
        });
    }
}

fn store<const N: usize>(words: &[AtomicU64], values: [u64; N]) {
    words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

fn store_pool(words: &[AtomicU64], pool: &dyn Pool) {
    let statistics = pool.statistics();
    store(&words[..NAME], text::<NAME>(pool.name()));
    store(&words[NAME..NAME + 2], words_of::<2>(&pool.provider().kind().to_bytes()));
    store(&words[NAME + 2..], pool_counters(&statistics));
}

fn pool_counters(it: &PoolStatistics) -> [u64; 6] {
    [it.live_bytes, it.live_blocks, it.cached_bytes, it.reserved_bytes, it.held_bytes, it.regions]
}

fn words_of<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
        *word = part.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    }
    words
}

/// Returns the words of a text, cut between characters if it is too long.
fn text<const N: usize>(text: &str) -> [u64; N] {
    let end = (0..=text.len().min(8 * N)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    words_of(&text.as_bytes()[..end])
}

/// Decodes a text that another process wrote. Replaces invalid UTF-8 and the characters that
/// [`plain`] replaces.
pub(crate) fn decode_text(words: &[u64]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    plain(&text)
}

/// Returns a text with the characters replaced that affect a terminal: control characters, and
/// characters that change the direction of text.
pub fn plain(text: &str) -> String {
    let is_control =
        |char: char| char.is_control() || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|char| if is_control(char) { char::REPLACEMENT_CHARACTER } else { char }).collect()
}

/// The statistics that a process has published. Its numbers are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// The process's name (`comm`) when it created the ledger.
    pub name: String,
    /// Time of the ledger's creation, in nanoseconds of `CLOCK_BOOTTIME`.
    pub started: u64,
    /// Time at which the counters of caches and leases were published, on the same clock; 0 if
    /// never.
    pub time: u64,
    /// The exporter's cache, if the ledger is an exporter's.
    pub exporter: Option<CacheStatistics>,
    /// The importer's cache, if the ledger is an importer's.
    pub importer: Option<CacheStatistics>,
    /// Leases that other processes have on memory of this one.
    pub leases: u64,
    /// Bytes that were freed and are held until their last lease ends.
    pub held_bytes: u64,
    /// Importers that have rows in the lease table.
    pub importers: u64,
    /// Handles that the process has sent, and whose claims it has not noticed yet.
    pub in_transit: u64,
    /// Time at which the counters of pools were published; 0 if never.
    pub pools_time: u64,
    /// Number of pools. Only the first 64 are listed.
    pub pools_in_all: u64,
    /// The pools of the process.
    pub pools: Vec<PoolFigures>,
}

/// The counters of a pool that a process has published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolFigures {
    /// Its name, cut to 32 bytes.
    pub name: String,
    /// The kind of its provider.
    pub provider: String,
    /// Bytes in allocated blocks.
    pub live_bytes: u64,
    /// Allocated blocks.
    pub live_blocks: u64,
    /// Free bytes in the pool.
    pub cached_bytes: u64,
    /// Bytes of regions from the provider.
    pub reserved_bytes: u64,
    /// Bytes that were freed and are held for other processes.
    pub held_bytes: u64,
    /// Regions from the provider.
    pub regions: u64,
}

impl Statistics {
    /// Decodes the area's constant words and the last records of both rings. They may have any
    /// length and content. Returns `None` if the version is unknown.
    pub(crate) fn decode(facts: &[u64], caches: Option<&[u64]>, pools: Option<&[u64]>) -> Option<Self> {
        let facts: &[u64; FIXED_WORDS] = facts.try_into().ok()?;
        if facts[0] != VERSION || facts[1] != POOL as u64 {
            return None;
        }
        let mut found = Self { name: decode_text(&facts[2..4]), started: facts[4], ..Self::default() };
        if let Some(words) = caches.filter(|words| words.len() == CACHES.words - 1) {
            let counters = |from: usize| core::array::from_fn(|index| words[from + index]);
            let cache =
                |flag, from| (words[1] & flag != 0).then(|| CacheStatistics::from_words(counters(from)));
            found.time = words[0];
            (found.exporter, found.importer) = (cache(EXPORTER, 2), cache(IMPORTER, 11));
            (found.leases, found.held_bytes) = (words[20], words[21]);
            (found.importers, found.in_transit) = (words[22], words[23]);
        }
        if let Some(words) = pools.filter(|words| words.len() == POOLS.words - 1) {
            let listed = usize::try_from(words[2]).unwrap_or(usize::MAX);
            (found.pools_time, found.pools_in_all) = (words[0], words[1]);
            let pools = words[POOLS_HEADER..].chunks_exact(POOL).take(listed);
            found.pools = pools.map(PoolFigures::decode).collect();
        }
        Some(found)
    }
}

impl PoolFigures {
    fn decode(words: &[u64]) -> Self {
        let [live_bytes, live_blocks, cached_bytes, reserved_bytes, held_bytes, regions] =
            core::array::from_fn(|index| words[NAME + 2 + index]);
        let mut kind = [0; ProviderKind::MAX];
        for (bytes, word) in kind.chunks_exact_mut(8).zip(&words[NAME..]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let provider = ProviderKind::from_bytes(kind).map_or_else(|| "?".to_owned(), |kind| kind.to_string());
        Self {
            name: decode_text(&words[..NAME]),
            provider,
            live_bytes,
            live_blocks,
            cached_bytes,
            reserved_bytes,
            held_bytes,
            regions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::read_last;
    use super::*;
    use proptest::prelude::*;

    fn read(words: &[AtomicU64]) -> Option<Statistics> {
        let words: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let ring = |from: usize, shape: RingShape| {
            read_last(shape, |at, count| words.get(from + at..from + at + count).map(<[u64]>::to_vec))
        };
        let last = |record: Option<(u64, Vec<u64>)>| record.map(|(_, fields)| fields);
        let (caches, pools) =
            (last(ring(FIXED_WORDS, CACHES)), last(ring(FIXED_WORDS + CACHES.size(), POOLS)));
        Statistics::decode(&words[..FIXED_WORDS], caches.as_deref(), pools.as_deref())
    }

    #[test]
    fn published_counters_round_trip() {
        let words: Vec<AtomicU64> = (0..SIZE).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(read(&words), None);
        assert!(StatisticsArea::new(&words[1..]).is_none());
        let area = StatisticsArea::new(&words).unwrap();
        area.write_fixed("a-name-of-more-than-16-bytes", 55);
        let found = read(&words).unwrap();
        assert_eq!((found.name.as_str(), found.started, found.time), ("a-name-of-more-t", 55, 0));
        let cache = CacheStatistics {
            hits: 1,
            table_hits: 2,
            misses: 3,
            stale: 4,
            evictions: 5,
            entries: 6,
            in_use: 7,
            bytes: 8,
            fds: 9,
        };
        for time in 100..103 {
            let importer = Some(cache).filter(|_| time == 102);
            let counters = PublishedCounters {
                exporter: Some(cache),
                importer,
                leases: 10,
                held_bytes: 11,
                importers: 12,
                in_transit: 13,
            };
            area.write_caches(time, &counters);
            let found = read(&words).unwrap();
            assert_eq!((found.time, found.exporter, found.importer), (time, Some(cache), importer));
            assert_eq!((found.leases, found.held_bytes, found.importers, found.in_transit), (10, 11, 12, 13));
        }
    }

    #[test]
    fn live_pools_are_listed() {
        let provider = umf_provider_host::HostProvider::builder().build().unwrap();
        let settings = umf_pool_slab::SlabSettings::new().name("of this test, äöü, and much longer");
        let pool = umf_pool_slab::SlabPool::new(provider, settings).unwrap();
        let address = pool.allocate(umf_core::Layout::new(100, 8).unwrap()).unwrap();
        let words: Vec<AtomicU64> = (0..SIZE).map(|_| AtomicU64::new(0)).collect();
        let area = StatisticsArea::new(&words).unwrap();
        area.write_fixed("test", 1);
        area.write_pools(77);
        let found = read(&words).unwrap();
        assert_eq!(found.pools_time, 77);
        let listed = found.pools.iter().find(|pool| pool.name == "of this test, äöü, and much l").unwrap();
        assert_eq!((listed.provider.as_str(), listed.live_blocks, listed.regions), ("host", 1, 1));
        assert!(listed.live_bytes >= 100);
        assert!(listed.reserved_bytes >= listed.live_bytes + listed.cached_bytes);
        assert!(found.pools_in_all >= found.pools.len() as u64);
        // SAFETY: the block was allocated above and nothing uses it.
        unsafe { pool.free(address) }.unwrap();
        drop(pool);
        area.write_pools(78);
        let found = read(&words).unwrap();
        assert!(found.pools.iter().all(|pool| !pool.name.starts_with("of this test")));
    }

    #[test]
    fn pool_counters_round_trip() {
        let mut it = PoolStatistics::default();
        (it.live_bytes, it.live_blocks, it.cached_bytes) = (1, 2, 3);
        (it.reserved_bytes, it.held_bytes, it.regions) = (4, 5, 6);
        let words =
            [text::<NAME>("a pool").as_slice(), &words_of::<2>(b"host"), &pool_counters(&it)].concat();
        let expected = PoolFigures {
            name: "a pool".to_owned(),
            provider: "host".to_owned(),
            live_bytes: 1,
            live_blocks: 2,
            cached_bytes: 3,
            reserved_bytes: 4,
            held_bytes: 5,
            regions: 6,
        };
        assert_eq!(PoolFigures::decode(&words), expected);
    }

    #[test]
    fn hostile_text_is_replaced() {
        assert_eq!(decode_text(&text::<4>("a\u{1b}[2Jb\nc")), "a\u{FFFD}[2Jb\u{FFFD}c");
        assert_eq!(plain("a\u{202e}b\u{2066}c\u{2069}"), "a\u{FFFD}b\u{FFFD}c\u{FFFD}");
        assert_eq!(decode_text(&[u64::MAX]), "\u{FFFD}".repeat(8));
        assert_eq!(decode_text(&text::<1>("äöüä!")), "äöüä");
        assert_eq!(decode_text(&text::<1>("äöüxä")), "äöüx");
    }

    proptest! {
        #[test]
        fn any_words_are_statistics_or_none(
            facts in proptest::collection::vec(prop_oneof![Just(1), Just(12), any::<u64>()], 0..10),
            caches in proptest::collection::vec(any::<u64>(), 29..33),
            pools in proptest::collection::vec(any::<u64>(), POOLS.words - 2..POOLS.words + 1),
            listed in prop_oneof![0_u64..100, any::<u64>()],
        ) {
            let mut pools = pools;
            pools[2] = listed;
            if let Some(found) = Statistics::decode(&facts, Some(&caches), Some(&pools)) {
                prop_assert!(found.pools.len() <= MAX_LISTED_POOLS);
                prop_assert!(!found.name.chars().any(char::is_control));
            }
        }
    }
}
