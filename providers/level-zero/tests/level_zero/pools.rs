//! Pools over device memory: the slab pool works. A pool that keeps its free list in the free blocks,
//! as pools over host memory may, is killed by its first access to one.

use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;

use umf_core::{Address, Layout, Pool, Provider, Region};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_level_zero::LevelZeroProvider;
use umf_runtime::Upstream;

use super::driver::{child, describe};
use super::{built, device, soft};

const BLOCK: u64 = 256;

/// A pool of fixed-size blocks of one region. The first word of a free block points to the next
/// one.
struct InBandPool {
    upstream: Upstream,
    region: Region,
    /// Offset of the first block that was never allocated, and the head of the free list.
    state: Mutex<(u64, Option<Address>)>,
}

impl InBandPool {
    fn new(provider: std::sync::Arc<LevelZeroProvider>) -> Self {
        let upstream = Upstream::new(provider).unwrap();
        let (region, _) = upstream.allocate(Layout::new(1 << 16, 1).unwrap()).unwrap();
        Self { upstream, region, state: Mutex::new((0, None)) }
    }

    fn allocate(&self) -> Address {
        let mut state = self.state.lock().unwrap();
        if let Some(first) = state.1 {
            // SAFETY: unsound for device memory, which is what the test is about.
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

impl Drop for InBandPool {
    fn drop(&mut self) {
        // SAFETY: the pool is dropped, so that no block of the region is in use.
        unsafe { self.upstream.free(self.region) }.unwrap();
    }
}

/// Allocates and frees blocks of the pool.
fn exercise(provider: std::sync::Arc<LevelZeroProvider>) {
    let pool = InBandPool::new(provider);
    let (one, other) = (pool.allocate(), pool.allocate());
    println!("two blocks were handed out");
    pool.free(one);
    pool.free(other);
    assert_eq!((pool.allocate(), pool.allocate()), (other, one));
    println!("the pool works");
}

#[test]
fn in_band_list_over_device_memory_is_killed() {
    let test = "pools::in_band_list_over_device_memory_is_killed";
    if std::env::var_os("TESTS_DRIVER_CHILD").is_some() {
        return exercise(built(device()));
    }
    let output = child(test, &[]).output().unwrap();
    let text = describe(&output);
    assert!(text.contains("two blocks were handed out") && !text.contains("the pool works"), "{text}");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{text}");
}

#[test]
fn in_band_list_over_host_memory_works() {
    // Shows that the access to device memory, and not the pool, kills the process.
    exercise(built(LevelZeroProvider::host(soft())));
}

#[test]
fn slab_blocks_keep_their_content() {
    let provider = built(device());
    let pool = SlabPool::new(std::sync::Arc::clone(&provider), SlabSettings::new()).unwrap();
    let transfer = provider.transfer().unwrap();
    let mut live = Vec::new();
    let content = |number: usize, size: usize| vec![(number * 31 % 251) as u8; size];
    for round in 0..3 {
        for number in 0..200 {
            let size = [8, 64, 100, 4096, 70_000, 3 << 20][number % 6];
            if number % 6 == 5 && number > 30 {
                continue;
            }
            let address = pool.allocate(Layout::new(size, 8).unwrap()).unwrap();
            // SAFETY: the block is live, and no reference into it exists; so below.
            unsafe { transfer.write(address, &content(number + round, size)) }.unwrap();
            live.push((address, number + round, size));
        }
        for (address, number, size) in &live {
            let mut bytes = vec![0; *size];
            // SAFETY: as above.
            unsafe { transfer.read(*address, &mut bytes) }.unwrap();
            assert!(bytes == content(*number, *size), "a block of {size} bytes");
        }
        let mut index = 0;
        live.retain(|(address, _, _)| {
            index += 1;
            if index % 2 == 0 {
                // SAFETY: not used any more.
                unsafe { pool.free(*address) }.unwrap();
            }
            index % 2 != 0
        });
    }
    for (address, _, _) in live {
        // SAFETY: as above.
        unsafe { pool.free(address) }.unwrap();
    }
    pool.trim(0).unwrap();
    assert_eq!(provider.statistics().bytes(), 0);
}
