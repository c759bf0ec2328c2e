//! A first program: one process exports a block, and another opens it by its handle, which is text.
//!
//! ```text
//! $ first                     prints a handle, and waits for Enter
//! $ first umf1.VU1GSA...      in another terminal: reads the block and writes a reply into it
//! ```

use std::io::Write;

fn main() -> umf::Result<()> {
    match std::env::args().nth(1) {
        None => produce(),
        Some(text) => consume(&text),
    }
}

fn produce() -> umf::Result<()> {
    let pool = umf::Pool::shared()?;
    let block = pool.allocate(4096)?;
    block.write(0, b"hello from the producer")?;
    println!("{}", block.handle()?);
    let _ = std::io::stdout().flush();

    let _ = std::io::stdin().read_line(&mut String::new());
    let mut reply = [0; 23];
    block.read(100, &mut reply)?;
    println!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}

fn consume(text: &str) -> umf::Result<()> {
    let handle: umf::Handle = text.parse()?;
    let mapping = umf::open(&handle)?;
    let mut greeting = [0; 23];
    mapping.read(0, &mut greeting)?;
    println!("{}", String::from_utf8_lossy(&greeting));
    mapping.write(100, b"hello from the consumer")?;
    Ok(())
}
