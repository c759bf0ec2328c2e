//! A block that exposes nothing else, opened for reading; and what an old handle says after the
//! block was freed.

fn main() -> umf::Result<()> {
    // Every block of this pool is a memory file of its own.
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
