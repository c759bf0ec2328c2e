//! The second process of a bench: the same program, controlled by lines of JSON through its pipes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use umf::host::HostProvider;
use umf::pools::ProxyPool;
use umf::{Handle, Pool};
use umf_core::Visibility;

use crate::allocators::Allocator;
use crate::libumf::{Libumf, Settings};
use crate::{Error, Result};

/// The second process, killed when dropped.
pub struct Second {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Second {
    /// Starts this program again with `--serve`.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start() -> Result<Second> {
        Self::start_with(&[])
    }

    /// Starts this program again with `--serve`, and with these environment variables.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_with(variables: &[(&str, &OsStr)]) -> Result<Second> {
        let mut command = Command::new("/proc/self/exe");
        command.envs(variables.iter().copied());
        let mut child = command.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let (Some(orders), Some(answers)) = (orders, answers) else { return Err("no pipes".into()) };
        Ok(Second { child, orders, answers: BufReader::new(answers) })
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order.
    ///
    /// # Errors
    /// The process ended.
    pub fn order(&mut self, order: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        Ok(self.orders.write_all(line.as_bytes())?)
    }

    /// Waits for the answer to an order.
    ///
    /// # Errors
    /// What failed in the process; or the process ended.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            return Err(format!("the second process ended: {}", self.child.wait()?).into());
        }
        let answer: std::result::Result<T, String> = serde_json::from_str(&line)?;
        answer.map_err(|error| format!("the second process failed: {error}").into())
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Executes orders until the first process closes the pipe or exits.
///
/// # Errors
/// The pipes fail. An error of `execute` is sent as the answer.
pub fn serve<Order: DeserializeOwned, Answer: Serialize>(
    mut execute: impl FnMut(Order) -> Result<Answer>,
) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let answer = execute(serde_json::from_str(&line?)?).map_err(|error| error.to_string());
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

/// Memory that a producer exports.
#[derive(Debug, Serialize, Deserialize)]
pub enum Memory {
    /// Blocks, each in a region with a descriptor of its own.
    Isolated,
    /// Blocks of one pool.
    Pooled,
    /// Regions of one memory file, one for each block.
    Arena,
    /// Blocks of a pool over buffers from udmabuf.
    DmaBuf,
    /// Blocks of a pool over CUDA memory of a kind.
    Cuda(String),
    /// Allocations of a `libumf.so.1`.
    Libumf(PathBuf, Settings),
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    memory: Memory,
    count: usize,
    size: usize,
}

/// A second process that exports memory.
pub struct Producer(Second);

impl Producer {
    /// Starts this program again, which runs [`produce`].
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start() -> Result<Producer> {
        Second::start().map(Producer)
    }

    /// Starts this program again with these environment variables, which runs [`produce`].
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_with(variables: &[(&str, &OsStr)]) -> Result<Producer> {
        Second::start_with(variables).map(Producer)
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Exports `count` blocks and returns the bytes of their handles.
    ///
    /// # Errors
    /// The memory is not available.
    pub fn bytes(&mut self, memory: Memory, count: usize, size: usize) -> Result<Vec<Vec<u8>>> {
        self.0.order(&Order { memory, count, size })?;
        self.0.answer()
    }

    /// Exports `count` blocks of memory of umf.
    ///
    /// # Errors
    /// The memory is not available.
    pub fn handles(&mut self, memory: Memory, count: usize, size: usize) -> Result<Vec<Handle>> {
        let bytes = self.bytes(memory, count, size)?;
        bytes.iter().map(|bytes| Ok(Handle::from_bytes(bytes)?)).collect()
    }
}

/// Exports what is ordered. All of it stays until the process ends.
///
/// # Errors
/// The pipes fail.
pub fn produce() -> Result<()> {
    serve(|Order { memory, count, size }| -> Result<Vec<Vec<u8>>> {
        let pool = match memory {
            Memory::Isolated => Pool::isolated()?,
            Memory::Pooled => Pool::shared()?,
            Memory::Arena => {
                let provider = HostProvider::builder().name("arena").visibility(Visibility::Shared);
                Pool::from_pool(ProxyPool::new(provider.build()?)?)
            }
            Memory::DmaBuf => {
                Pool::builder().provider(umf::dma_buf::DmaBufProvider::udmabuf()?.build()?).build()?
            }
            Memory::Cuda(memory) => {
                let memory = memory.parse()?;
                let provider = umf::cuda::CudaProvider::builder().memory(memory).build()?;
                Pool::builder().provider(provider).build()?
            }
            Memory::Libumf(path, settings) => {
                let library = Box::leak(Box::new(Libumf::open(&path, settings)?));
                let handles = (0..count).map(|_| Ok(library.handle(library.allocate(size)?)?));
                return handles.collect();
            }
        };
        let pool: &Pool = Box::leak(Box::new(pool));
        let export = |_| {
            let block = pool.allocate(size)?;
            let handle = block.handle()?.to_bytes().to_vec();
            std::mem::forget(block);
            Ok::<_, Error>(handle)
        };
        (0..count).map(export).collect()
    })
}
