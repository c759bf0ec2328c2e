//! A slab pool as the allocator of the whole program.

use std::collections::BTreeMap;

#[global_allocator]
static ALLOCATOR: umf::GlobalPool = umf::GlobalPool::new();

fn main() {
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            std::thread::spawn(move || {
                let map: BTreeMap<u64, String> = (0..1000).map(|n| (n, format!("{thread}-{n}"))).collect();
                map.len()
            })
        })
        .collect();
    let total: usize = threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
    let served = ALLOCATOR.statistics().map_or(0, |statistics| statistics.allocations);
    println!("{total} entries, and more than 4000 allocations: {}", served > 4000);
}
