//! Blocks that are freed with a completion.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::super::borrower::Borrower;
use super::forks::fork_amid;
use super::misuse::{is_not_allocated, is_not_live};
use super::threads::join;
use super::{Make, Pages, Random, allocate, at, controls, deferred, free, layout, mark_exported, try_free};
use umf_core::deferred::OnFree;
use umf_core::{Address, Completion, Error, Pool, Progress, Result};
use umf_runtime::deferred;

/// What no test here takes as long as.
const LONG: Duration = Duration::from_secs(20);
const SIZES: [usize; 4] = [64, 5000, 100_000, 10 << 20];

const PENDING: u8 = 0;
const READY: u8 = 1;
const LOST: u8 = 2;
const PANICS: u8 = 3;

/// A completion that says what it is told to, for tests of pools and of what stands on them.
#[derive(Debug, Default)]
pub struct Token {
    state: AtomicU8,
    said_ready: AtomicBool,
    asked_too_often: AtomicBool,
}

impl Token {
    /// One that is pending.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// From now on it says that it is ready.
    pub fn be_ready(&self) {
        self.state.store(READY, Ordering::SeqCst);
    }

    /// From now on it says that it is lost.
    pub fn be_lost(&self) {
        self.state.store(LOST, Ordering::SeqCst);
    }

    /// Whether it says that it is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.load(Ordering::SeqCst) == READY
    }

    /// From now on it panics.
    pub fn panic(&self) {
        self.state.store(PANICS, Ordering::SeqCst);
    }

    /// Whether it was asked after it had said that.
    #[must_use]
    pub fn was_asked_too_often(&self) -> bool {
        self.asked_too_often.load(Ordering::SeqCst)
    }
}

impl Completion for Token {
    fn progress(&self) -> Progress {
        match self.state.load(Ordering::SeqCst) {
            READY => {
                if self.said_ready.swap(true, Ordering::SeqCst) {
                    self.asked_too_often.store(true, Ordering::SeqCst);
                }
                Progress::Ready
            }
            LOST => Progress::Lost,
            // Without the hook's message.
            PANICS => std::panic::resume_unwind(Box::new("a completion that panics")),
            state => {
                assert_eq!(state, PENDING, "a state of this token");
                Progress::Pending
            }
        }
    }
}

fn try_free_after(pool: &dyn Pool, address: Address, token: &Arc<Token>) -> Result<()> {
    let token: Arc<dyn Completion> = token.clone();
    // SAFETY: the suite frees blocks of its own that nobody uses, or passes addresses that are no live block.
    unsafe { deferred(pool).free_after(address, token) }
}

fn free_after(pool: &dyn Pool, address: Address, token: &Arc<Token>) {
    try_free_after(pool, address, token).unwrap_or_else(|error| panic!("freeing {address}: {error}"));
}

fn overlap(one: (Address, usize), other: (Address, usize)) -> bool {
    one.0.to_bits() < other.0.to_bits() + other.1 as u64 && other.0.to_bits() < one.0.to_bits() + one.1 as u64
}

/// Blocks of `size` bytes, several regions of them.
fn many(pool: &dyn Pool, size: usize) -> Vec<Address> {
    (0..(64 << 20) / size.max(256 << 10)).map(|_| allocate(pool, size)).collect()
}

/// What is freed with a completion is freed, and not handed out before that is ready, whatever is allocated and trimmed.
pub fn delayed_blocks_are_not_handed_out(make: Make<'_>) {
    for size in SIZES {
        let provider = Pages::private();
        let pool = make(provider.clone().into());
        let address = allocate(&*pool, size);
        let block = pool.block_at(address).expect("live");
        let token = Token::new();
        free_after(&*pool, address, &token);
        for result in [
            try_free(&*pool, address),
            try_free_after(&*pool, address, &Token::new()),
            mark_exported(&*pool, address),
            pool.block_at(address).map(drop),
        ] {
            assert!(
                result.as_ref().is_err_and(|error| is_not_allocated(error, address)),
                "{size} bytes: {result:?}"
            );
        }
        let statistics = pool.statistics();
        assert_eq!((statistics.live_blocks, statistics.live_bytes, statistics.frees), (0, 0, 1));
        assert_eq!(statistics.held_bytes, block.size as u64);
        assert_eq!(statistics.reserved_bytes, provider.live_bytes() as u64);
        for round in 0..3 {
            let others = many(&*pool, size);
            let taken = others.iter().find(|&&other| overlap((other, size), (address, block.size)));
            assert_eq!(taken, None, "{size} bytes at {address} are in use, round {round}");
            others.into_iter().for_each(|other| free(&*pool, other));
            pool.trim(0).expect("the provider takes everything back");
            assert!(provider.contains(address, block.size), "the region of a block in use went");
        }
        let left = controls(&*pool).drain(Duration::ZERO);
        let awaited = (left.bytes, left.pending_bytes, left.lost_bytes);
        assert_eq!(awaited, (block.size as u64, block.size as u64, 0));
        token.be_ready();
        pool.trim(0).expect("the provider takes everything back");
        let statistics = pool.statistics();
        assert_eq!((statistics.held_bytes, statistics.frees), (0, statistics.allocations));
        assert_eq!((provider.live_regions(), statistics.reserved_bytes), (0, 0), "{size} bytes");
        assert!(!token.was_asked_too_often());
        assert_eq!(Arc::strong_count(&token), 1, "a completion that is ready is dropped");
        free(&*pool, allocate(&*pool, size));
    }
}

/// What has become ready is used again with nobody polling, and what was ready from the start is free at once.
pub fn ready_blocks_are_used_again(make: Make<'_>) {
    let provider = Pages::private();
    let pool = make(provider.clone().into());
    for size in SIZES {
        let mut tokens: Vec<Arc<Token>> = Vec::new();
        let mut most = 0;
        for _ in 0..2_000_000_000 / (size + 1_000_000) {
            let (address, token) = (allocate(&*pool, size), Token::new());
            free_after(&*pool, address, &token);
            tokens.push(token);
            // As on a stream: in order, and some time later.
            if tokens.len() > 8 {
                tokens.remove(0).be_ready();
            }
            most = most.max(pool.statistics().held_bytes);
        }
        assert!(
            most <= (200 * (size + size / 4)).max(1 << 20) as u64,
            "{most} bytes in blocks of {size} were held"
        );
        tokens.into_iter().for_each(|token| token.be_ready());
        assert!(controls(&*pool).drain(LONG).is_empty());
    }
    let (address, token) = (allocate(&*pool, 64), Token::new());
    token.be_ready();
    free_after(&*pool, address, &token);
    assert_eq!((pool.statistics().held_bytes, pool.statistics().live_blocks), (0, 0));
    assert_eq!(Arc::strong_count(&token), 1);
}

/// A completion that is lost, or panics, holds its block until it says that it is ready.
pub fn lost_completions_hold_their_blocks(make: Make<'_>) {
    for size in SIZES {
        for lose in [Token::be_lost, Token::panic] {
            let provider = Pages::private();
            let pool = make(provider.clone().into());
            let (address, token) = (allocate(&*pool, size), Token::new());
            let all = pool.block_at(address).expect("live").size as u64;
            lose(&token);
            free_after(&*pool, address, &token);
            let others = many(&*pool, size);
            assert!(others.iter().all(|&other| !overlap((other, size), (address, size))));
            others.into_iter().for_each(|other| free(&*pool, other));
            pool.trim(0).expect("the provider takes everything back");
            let left = controls(&*pool).drain(Duration::from_millis(1));
            assert_eq!((left.pending_bytes, left.lost_bytes), (all, all), "{size} bytes");
            assert!(provider.contains(address, size));
            token.be_ready();
            assert!(controls(&*pool).drain(LONG).is_empty() && controls(&*pool).drain(LONG).lost_bytes == 0);
            pool.trim(0).expect("the provider takes everything back");
            assert_eq!(provider.live_regions(), 0);
        }
    }
}

/// A pool that goes does not wait: what may be in use keeps its contents and is given back later,
/// and nothing else stays.
pub fn delayed_blocks_outlive_their_pool(make: Make<'_>) {
    for size in SIZES {
        let provider = Pages::private();
        let pool = make(provider.clone().into());
        controls(&*pool).set_on_free(OnFree::Release, 0);
        let tokens = [Token::new(), Token::new()];
        let blocks = [(); 2].map(|()| allocate(&*pool, size));
        let pointers = blocks.map(|address| address.as_ptr().expect("host memory"));
        for pointer in pointers {
            // SAFETY: the block is this test's, and of that size.
            unsafe { pointer.write_bytes(7, size) };
        }
        let others: Vec<_> = (0..10).map(|_| allocate(&*pool, 2 << 20)).collect();
        blocks.iter().zip(&tokens).for_each(|(&address, token)| free_after(&*pool, address, token));
        tokens[1].be_lost();
        drop(pool);
        for _ in 0..2 {
            assert!(
                blocks.iter().all(|&address| provider.contains(address, size)),
                "{size} bytes went too early"
            );
            for pointer in pointers {
                // SAFETY: its region is there, and nobody writes to it.
                let is_same =
                    (0..size).step_by(997).all(|at| unsafe { pointer.add(at).read_volatile() } == 7);
                assert!(is_same, "{size} bytes that may be in use lost their contents");
            }
            assert!(provider.live_bytes() <= (64 << 20), "{others:?}: more is held than may be in use");
            deferred::poll();
        }
        tokens.iter().for_each(|token| token.be_ready());
        let begin = Instant::now();
        while provider.live_regions() != 0 || Arc::strong_count(&provider) != 1 {
            assert!(begin.elapsed() < LONG, "a region that nobody uses stays");
            deferred::poll();
        }
        assert!(tokens.iter().all(|token| Arc::strong_count(token) == 1));
    }
}

/// The exports of a block end when it is freed; and it is used again when both its completion is ready and nobody has it open.
pub fn exports_of_delayed_blocks_end_at_once(make: Make<'_>) {
    for size in SIZES {
        for ready_first in [true, false] {
            let (provider, borrower) = (Pages::shared(), Borrower::new());
            let pool = make(provider.clone().into());
            controls(&*pool).set_on_free(OnFree::Release, 1);
            let (address, token) = (allocate(&*pool, size), Token::new());
            mark_exported(&*pool, address).expect("live");
            borrower.open(address, size);
            let pointer = address.as_ptr().expect("host memory");
            // SAFETY: the block is this test's, and of that size.
            unsafe { pointer.write_bytes(7, size) };
            free_after(&*pool, address, &token);
            assert!(borrower.was_told(address), "its exports are still there");
            // SAFETY: held, so that its region is mapped.
            let last = unsafe { pointer.add(size - 1).read_volatile() };
            assert_eq!(last, 7, "what may be in use keeps its contents");
            // The bound concerns what others have open, and this block's completion comes to an end by itself.
            free(&*pool, allocate(&*pool, size));
            for step in 0..2 {
                pool.trim(0).expect("the provider takes everything back");
                assert!(provider.contains(address, size), "step {step}");
                if (step == 0) == ready_first { token.be_ready() } else { borrower.close_all() }
            }
            pool.trim(0).expect("the provider takes everything back");
            assert_eq!((provider.live_regions(), pool.statistics().held_bytes), (0, 0), "{size} bytes");
        }
    }
}

/// What is no live block is refused, with nothing changed.
pub fn delayed_frees_of_other_addresses_are_refused(make: Make<'_>) {
    let provider = Pages::private();
    let (pool, other) = (make(provider.clone().into()), make(provider.into()));
    let token = Token::new();
    for size in SIZES {
        let (mine, theirs) = (allocate(&*pool, size), allocate(&*other, size));
        for inside in [1, size as u64 / 2, size as u64 - 1] {
            let address = at(mine, inside);
            assert_eq!(try_free_after(&*pool, address, &token), Err(Error::InteriorAddress { address }));
        }
        let foreign = try_free_after(&*pool, theirs, &token);
        assert!(matches!(foreign, Err(Error::ForeignAddress { .. })), "{foreign:?}");
        assert_eq!(pool.block_at(mine).map(|block| block.address), Ok(mine));
        free(&*pool, mine);
        let twice = try_free_after(&*pool, mine, &token);
        assert!(twice.as_ref().is_err_and(is_not_live), "{twice:?}");
        free(&*other, theirs);
    }
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!((pool.statistics().held_bytes, other.statistics().held_bytes), (0, 0));
}

/// A completion that uses its pool while it is asked, and when it is dropped.
struct Nosy {
    pool: Weak<dyn Pool>,
    asked: Arc<AtomicUsize>,
}

impl Nosy {
    fn use_pool(&self) {
        if let Some(pool) = self.pool.upgrade() {
            for address in SIZES.iter().flat_map(|&size| pool.allocate(layout(size, 1))) {
                free(&*pool, address);
            }
        }
    }
}

impl Completion for Nosy {
    fn progress(&self) -> Progress {
        self.use_pool();
        if self.asked.fetch_add(1, Ordering::SeqCst) < 3 { Progress::Pending } else { Progress::Ready }
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        self.use_pool();
    }
}

/// A completion is asked, and dropped, with no lock taken.
pub fn completions_may_use_their_pool(make: Make<'_>) {
    let provider = Pages::private();
    let pool = make(provider.clone().into());
    let asked: Vec<_> = SIZES.map(|_| Arc::new(AtomicUsize::new(0))).into();
    for (size, asked) in SIZES.into_iter().zip(&asked) {
        let address = allocate(&*pool, size);
        let nosy = Nosy { pool: Arc::downgrade(&pool), asked: asked.clone() };
        // SAFETY: the block is this test's, and nobody uses it.
        unsafe { deferred(&*pool).free_after(address, Arc::new(nosy)) }.expect("it is live");
    }
    assert!(controls(&*pool).drain(LONG).is_empty());
    assert!(asked.iter().all(|asked| Arc::strong_count(asked) == 1 && asked.load(Ordering::SeqCst) == 4));
    pool.trim(0).expect("the provider takes everything back");
    assert_eq!(provider.live_regions(), 0);
}

/// Four threads free blocks with completions that become ready at some other time, each other's blocks too: none is handed out
/// while its completion is pending, and none is lost.
pub fn threads_keep_off_delayed_blocks(make: Make<'_>) {
    let provider = Pages::private();
    let pool = make(provider.clone().into());
    let early = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pool, early) = (&*pool, &early);
        let work = |seed: u64| {
            move || {
                let mut random = Random(seed);
                let mut pending: Vec<(Arc<Token>, Address, usize, u8)> = Vec::new();
                for round in 0..2_000_usize {
                    let size = random.size(17);
                    let address = allocate(pool, size);
                    let value = (round % 251) as u8;
                    // SAFETY: the block is this thread's, and of that size.
                    unsafe { address.as_ptr().expect("host memory").write_bytes(value, size) };
                    if random.below(2) == 0 {
                        let token = Token::new();
                        free_after(pool, address, &token);
                        pending.push((token, address, size, value));
                    } else {
                        free(pool, address);
                    }
                    if pending.len() > 20 {
                        let (token, address, size, value) = pending.swap_remove(random.below(20));
                        // SAFETY: its completion is pending, so its region is mapped, and nobody writes there.
                        let is_same = (0..size).step_by(997).all(|offset| unsafe {
                            address.as_ptr().expect("host memory").add(offset).read_volatile() == value
                        });
                        if !is_same {
                            early.store(true, Ordering::Relaxed);
                        }
                        token.be_ready();
                    }
                    if random.below(200) == 0 {
                        deferred::poll();
                        pool.trim(random.below(8 << 20)).expect("the provider takes everything back");
                    }
                }
                pending.into_iter().for_each(|(token, ..)| token.be_ready());
            }
        };
        // Joined, so that what their caches hold has gone when this ends.
        join((0..4).map(|seed| scope.spawn(work(seed))).collect());
    });
    assert!(!early.load(Ordering::Relaxed), "a block was handed out before its completion was ready");
    assert!(controls(&*pool).drain(LONG).is_empty());
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.held_bytes, statistics.allocations), (0, 0, 8_000));
    pool.trim(0).expect("the provider takes everything back");
    assert_eq!(provider.live_regions(), 0);
}

/// A child forked amid all that holds nothing, hands nothing out that the parent's devices may use, and works on; in the parent
/// everything is as it was.
pub fn a_child_awaits_nothing_of_its_parent(make: Make<'_>) {
    let provider = Pages::private();
    let pool = make(provider.into());
    let (pool, token) = (&*pool, Token::new());
    let delayed: Vec<_> = SIZES.map(|size| (allocate(pool, size), size)).into();
    delayed.iter().for_each(|&(address, _)| free_after(pool, address, &token));
    let traffic = |seed, stop: &AtomicBool| {
        let mut random = Random(seed);
        while !stop.load(Ordering::Relaxed) {
            let (address, token) = (allocate(pool, random.size(15)), Token::new());
            free_after(pool, address, &token);
            token.be_ready();
            deferred::poll();
        }
    };
    fork_amid(traffic, || {
        if !deferred::statistics().is_empty() || deferred::statistics().pending_bytes != 0 {
            return 1;
        }
        for round in 0..200 {
            let Ok(address) = pool.allocate(layout(SIZES[round % 3], 1)) else { return 2 };
            if delayed.iter().any(|&one| overlap(one, (address, SIZES[round % 3]))) {
                return 3;
            }
            if round % 2 == 0 && try_free(pool, address).is_err() {
                return 4;
            }
        }
        i32::from(!controls(pool).drain(Duration::from_millis(1)).is_empty()) * 5
    });
    assert!(pool.statistics().held_bytes >= SIZES.iter().sum::<usize>() as u64);
    token.be_ready();
    assert!(controls(pool).drain(LONG).is_empty());
}
