//! Two processes exchange messages. One message is a block that is handed over without a copy.
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
            // Maps the sender's block. Dropping the view gives it back.
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
            let memory = block.link_memory()?;
            // Costs the same for any size. Waits until the receiver has dropped its view.
            link.hand_over(BLOCK, &memory)?.wait(patience)?;
        }
    }
    Ok(())
}
