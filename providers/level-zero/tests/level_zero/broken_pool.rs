//! A pool that keeps its list of free blocks in the blocks themselves, as pools over host memory may: over device memory it is
//! caught when it first does so.

use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;

use umf_core::{Address, Layout, Region};
use umf_provider_level_zero::LevelZeroProvider;
use umf_runtime::Upstream;

use super::driver::{child, shown};
use super::{built, device, soft};

const BLOCK: u64 = 256;

/// Hands out blocks of one size of one region. The first word of a free block is where the next one is.
struct Careless {
    upstream: Upstream,
    region: Region,
    /// Where blocks that were never handed out begin, and the first that was freed.
    state: Mutex<(u64, Option<Address>)>,
}

impl Careless {
    fn new(provider: std::sync::Arc<LevelZeroProvider>) -> Self {
        let upstream = Upstream::new(provider).unwrap();
        let (region, _) = upstream.allocate(Layout::new(1 << 16, 1).unwrap()).unwrap();
        Self { upstream, region, state: Mutex::new((0, None)) }
    }

    fn allocate(&self) -> Address {
        let mut state = self.state.lock().unwrap();
        if let Some(first) = state.1 {
            // SAFETY: none for device memory: that is the mistake.
            let next = unsafe { first.as_ptr().unwrap().cast::<u64>().read_volatile() };
            state.1 = (next != 0).then(|| Address::from_bits(next));
            return first;
        }
        state.0 += BLOCK;
        self.region.base().checked_add(state.0 - BLOCK).unwrap()
    }

    fn free(&self, block: Address) {
        let mut state = self.state.lock().unwrap();
        let next = state.1.map_or(0, Address::to_bits);
        // SAFETY: as above.
        unsafe { block.as_ptr().unwrap().cast::<u64>().write_volatile(next) };
        state.1 = Some(block);
    }
}

impl Drop for Careless {
    fn drop(&mut self) {
        // SAFETY: nobody uses the region.
        unsafe { self.upstream.free(self.region) }.unwrap();
    }
}

/// What a user of the pool does.
fn use_it(provider: std::sync::Arc<LevelZeroProvider>) {
    let pool = Careless::new(provider);
    let (one, other) = (pool.allocate(), pool.allocate());
    println!("two blocks were handed out");
    pool.free(one);
    pool.free(other);
    assert_eq!((pool.allocate(), pool.allocate()), (other, one));
    println!("the pool works");
}

#[test]
fn over_device_memory_it_is_killed() {
    let test = "broken_pool::over_device_memory_it_is_killed";
    if std::env::var_os("TESTS_DRIVER_CHILD").is_some() {
        return use_it(built(device()));
    }
    let output = child(test, &[]).output().unwrap();
    let text = shown(&output);
    assert!(text.contains("two blocks were handed out") && !text.contains("the pool works"), "{text}");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{text}");
}

#[test]
fn over_host_memory_it_works() {
    // So it is the memory that catches it, and no mistake of the test's.
    use_it(built(LevelZeroProvider::host(soft())));
}
