//! A handle as a field of a serialised message: text in JSON, 256 bytes in binary formats.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    memory: umf::Handle,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = umf::Pool::shared()?;
    let block = pool.allocate(2 * 3 * 4)?;
    block.write(0, &[7; 24])?;
    let tensor = Tensor { name: "weights".into(), shape: vec![2, 3], memory: block.handle()? };
    let message = serde_json::to_string(&tensor)?;

    let received: Tensor = serde_json::from_str(&message)?;
    let mapping = umf::open(&received.memory)?;
    // The pool may have rounded the size of the block up, and the mapping has the size of the
    // block.
    let mut bytes = vec![0; received.shape.iter().product::<usize>() * 4];
    mapping.read(0, &mut bytes)?;
    println!("{} {:?}: {} bytes of {}", received.name, received.shape, bytes.len(), bytes[0]);
    Ok(())
}
