//! A region that outlives the process that created it.
//!
//! ```text
//! $ domain jobs                          creates a region, prints its id, waits for Enter
//! $ domain jobs 0x43a1c0be7d210000       in other terminals: registers, adds one, waits for Enter
//! ```
//!
//! The processes can end in any order, also by a signal. While one is running, others can register.
//! After the end of the last process, the id is invalid.

use std::io::Write;
use std::sync::atomic::Ordering;

use umf::domain::ObjectId;

/// The tag of this program's regions.
const COUNTER: u32 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "umf-example".to_owned());
    let domain = umf::domain::join(&name)?;
    let object = match arguments.next() {
        None => {
            let object = domain.create(4096, COUNTER)?;
            println!("{}", object.id());
            object
        }
        Some(id) => domain.register(id.parse::<ObjectId>()?, COUNTER)?,
    };
    let counter = object.view::<u64>()?.atomic(0).ok_or("the region has less than 8 bytes")?;
    println!("user {} of this region", counter.fetch_add(1, Ordering::SeqCst) + 1);
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
