//! A block that shares no page with other blocks, opened for reading; and the error of its handle
//! after the block was freed.

fn main() -> umf::Result<()> {
    // Every block of this pool is a separate memory file.
    let pool = umf::Pool::isolated()?;
    let block = pool.allocate(4096)?;
    block.write(0, b"look, do not touch")?;
    let handle = block.handle()?;
    println!("isolated: {}", handle.is_isolated());

    let mapping = umf::open_read_only(&handle)?;
    if let Err(error) = mapping.write(0, b"x") {
        println!("{error}");
    }

    drop(block);
    println!("still current: {}", mapping.is_current());
    if let Err(error) = umf::open(&handle) {
        println!("{error}");
    }
    Ok(())
}
