//! The slab pool over device memory.

use umf_core::{Layout, Pool, Provider};
use umf_pool_slab::{SlabPool, SlabSettings};

use super::{built, device};

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
