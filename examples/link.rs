//! Two processes exchange messages; one of them is memory that nobody copies.
//!
//! ```text
//! $ link                      prints an address, waits for somebody
//! $ link umfl1.VU1GTAEA...    in another terminal: connects, says hello, hands a block over
//! ```

use std::io::Write;
use std::time::Duration;

use umf::link::{LinkAddress, TagMatch};

const HELLO: u64 = 1;
const BLOCK: u64 = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let patience = Some(Duration::from_secs(60));
    match std::env::args().nth(1) {
        None => {
            let endpoint = umf::link::bind()?;
            println!("{}", endpoint.address());
            std::io::stdout().flush()?;
            let mut link = endpoint.accept(patience)?;
            link.set_timeout(patience);
            let mut text = [0; 64];
            let received = link.recv(TagMatch::ANY, &mut text)?;
            println!("{}", String::from_utf8_lossy(&text[..received.length]));
            // The sender's own memory, opened here; dropping the view gives it back.
            let view = link.recv_view(BLOCK)?;
            let mut last = [0; 8];
            view.read(view.len() - last.len(), &mut last)?;
            println!("a block of {} bytes, the last of which are {last:?}", view.len());
        }
        Some(address) => {
            let mut link = umf::link::connect(&address.parse::<LinkAddress>()?, patience)?;
            link.set_timeout(patience);
            link.send(HELLO, format!("hello from process {}", std::process::id()).as_bytes())?;
            let pool = umf::Pool::shared()?;
            let block = pool.allocate(16 << 20)?;
            block.write(block.len() - 8, &[1, 2, 3, 4, 5, 6, 7, 8])?;
            let memory = block.linked()?;
            // Costs the same for any size. Until the other process has looked at it.
            link.hand_over(BLOCK, &memory)?.wait(patience)?;
        }
    }
    Ok(())
}
