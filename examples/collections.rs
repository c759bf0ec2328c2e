//! A vector and a hash map whose memory is allocated from a pool.

use allocator_api2::vec::Vec;
use hashbrown::{DefaultHashBuilder, HashMap};

fn main() -> umf::Result<()> {
    let pool = umf::Pool::private()?;

    let mut squares = Vec::new_in(&pool);
    squares.extend((0..1000_u64).map(|n| n * n));

    let mut names: HashMap<&str, u32, DefaultHashBuilder, &umf::Pool> =
        HashMap::with_hasher_in(DefaultHashBuilder::default(), &pool);
    names.insert("one", 1);
    names.insert("two", 2);

    println!("sum {} names {}", squares.iter().sum::<u64>(), names.len());
    println!("{} blocks live", pool.statistics().live_blocks);
    drop((squares, names));
    println!("{} blocks live", pool.statistics().live_blocks);
    Ok(())
}
