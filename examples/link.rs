//! Two processes exchange messages. One message hands a block over without a copy.
//!
//! ```text
//! $ link                      prints an address and waits for a connection
//! $ link umfl2.VU1GTAIA...    in another terminal: connects, sends a text, hands a block over
//! ```

use std::io::Write;
use std::time::Duration;

use umf::link::{LinkAddress, TagMatch};

const HELLO: u64 = 1;
const BLOCK: u64 = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let timeout = Some(Duration::from_secs(60));
    match std::env::args().nth(1) {
        None => {
            let endpoint = umf::link::bind()?;
            println!("{}", endpoint.address());
            std::io::stdout().flush()?;
            let mut link = endpoint.accept(timeout)?;
            link.set_timeout(timeout);
            let mut text = [0; 64];
            let received = link.recv(TagMatch::ANY, &mut text)?;
            println!("{}", String::from_utf8_lossy(&text[..received.length]));
            // Maps the sender's block. Dropping the view returns the block.
            let view = link.recv_view(BLOCK)?;
            let mut last = [0; 8];
            view.read(view.len() - last.len(), &mut last)?;
            println!("a block of {} bytes, which end with {last:?}", view.len());
        }
        Some(address) => {
            let mut link = umf::link::connect(&address.parse::<LinkAddress>()?, timeout)?;
            link.set_timeout(timeout);
            link.send(HELLO, format!("hello from process {}", std::process::id()).as_bytes())?;
            let pool = umf::Pool::shared()?;
            let block = pool.allocate(16 << 20)?;
            block.write(block.len() - 8, &[1, 2, 3, 4, 5, 6, 7, 8])?;
            let memory = block.link_memory()?;
            // Handing over takes the same time for any size. Waits until the receiver has dropped
            // its view.
            link.hand_over(BLOCK, &memory)?.wait(timeout)?;
        }
    }
    Ok(())
}
