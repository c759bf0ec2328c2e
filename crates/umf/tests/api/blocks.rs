//! Blocks that borrow their pool and blocks that own a share of it; what the builder keeps.

use std::sync::Arc;

use umf::PoolStatistics;
use umf::host::HostProvider;
use umf::{Error, OwnedBlock, Pool};

fn live(pool: &Pool) -> u64 {
    let PoolStatistics { live_blocks, .. } = pool.statistics();
    live_blocks
}

#[test]
fn owned_block_keeps_its_pool_and_is_freed_once() {
    let provider = HostProvider::builder().build().unwrap();
    // The pool has the provider until it is dropped.
    let of_pool = Arc::downgrade(&provider);
    let pool = Pool::builder().provider(provider).name("owned").build().unwrap();
    let observer = pool.clone();
    let owned: Vec<OwnedBlock> = (1..=10).map(|size| pool.allocate_owned(size * 1000).unwrap()).collect();
    let borrowed = pool.allocate(5000).unwrap();
    assert_eq!(live(&observer), 11);
    let address = borrowed.address();
    let converted = borrowed.into_owned();
    assert_eq!((converted.address(), converted.len(), converted.pool().name()), (address, 5000, "owned"));
    drop(pool);
    let thread = std::thread::spawn(move || {
        for block in &owned {
            block.write(0, &[7; 100]).unwrap();
        }
        owned.into_iter().map(|block| block.len()).sum::<usize>()
    });
    assert_eq!(thread.join().unwrap(), 55_000);
    assert_eq!(live(&observer), 1);
    drop(observer);
    converted.write(0, &[7; 100]).unwrap();
    assert!(of_pool.upgrade().is_some());
    drop(converted);
    assert!(of_pool.upgrade().is_none());
}

#[test]
fn mapping_has_the_requested_size() {
    let pool = Pool::shared().unwrap();
    for size in [1, 100, 4097, 70_000] {
        let block = pool.allocate(size).unwrap();
        let handle = block.handle().unwrap();
        assert_eq!((handle.requested(), handle.length() >= size as u64), (size as u64, true));
        let mapping = umf::open(&handle).unwrap();
        assert_eq!(mapping.len(), size);
        assert_eq!(mapping.view::<u8>().unwrap().len(), size);
        assert!(mapping.read(size - 1, &mut [0]).is_ok());
        assert!(matches!(mapping.read(size, &mut [0]), Err(umf::ipc::Error::OutOfBounds { .. })));
    }
}

#[test]
fn into_address_leaves_the_block_allocated() {
    let provider = HostProvider::builder().build().unwrap();
    let of_pool = Arc::downgrade(&provider);
    let pool = Pool::builder().provider(provider).build().unwrap();
    let address = pool.allocate_owned(100).unwrap().into_address();
    assert_eq!(live(&pool), 1);
    // SAFETY: the block is live, and nothing uses it.
    unsafe { umf_core::pool::free(pool.as_core(), address) }.unwrap();
    assert_eq!(live(&pool), 0);
    drop(pool);
    assert!(of_pool.upgrade().is_none());
}

#[test]
fn builder_keeps_what_was_set_before_slab_settings_change() {
    let builder = Pool::builder().name("kept").memory_limit(1 << 20).max_poolable_size(64 << 10);
    let pool = builder.slab(|slab| slab.capacity(1)).build().unwrap();
    assert_eq!(pool.name(), "kept");
    let error = pool.allocate(2 << 20).unwrap_err();
    assert!(matches!(error, Error::Memory(umf_core::Error::LimitReached { .. })), "{error}");
}

#[test]
fn debug_of_an_error_says_what_to_do() {
    let error = Pool::over("no-such-set").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().contains("use one of: "), "{error}");
}
