//! The other process: exports memory for the rows that open it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use umf::{Block, Handle, Pool};

use super::c_umf::{CUmf, Refused, Settings};
use super::measure::told;
use crate::failure::Failure;
use crate::worker::{self, Launcher, Worker};

/// What the producer is to export.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Blocks, each in a region of its own that has an fd of its own.
    Isolated { count: usize, size: usize },
    /// Blocks of one pool.
    Pooled { count: usize, size: usize },
    /// Regions of one memory file, one for each block.
    Arena { count: usize, size: usize },
    /// Blocks of a pool over buffers from udmabuf.
    DmaBuf { count: usize, size: usize },
    /// Blocks of a pool over CUDA memory of a kind.
    Cuda { memory: String, count: usize, size: usize },
    /// Allocations of the C library, from regions of its own each.
    Foreign { library: PathBuf, settings: Settings, count: usize, size: usize },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Handles(Vec<Handle>),
    Foreign(Vec<Vec<u8>>),
    Failed(String),
}

/// The producer, as the process that measures knows it.
pub(super) struct Producer {
    worker: Worker,
}

impl Producer {
    pub(super) fn start() -> Result<Producer, Failure> {
        let launcher = std::process::id().to_string();
        let worker = Worker::start(&["bench", "--producer", &launcher], &[]).map_err(Failure::Told)?;
        Ok(Producer { worker })
    }

    pub(super) fn pid(&self) -> u32 {
        self.worker.pid()
    }

    /// Handles of `count` blocks, each in a region and file of its own.
    pub(super) fn isolated(&mut self, count: usize, size: usize) -> Result<Vec<Handle>, Failure> {
        self.handles(&Order::Isolated { count, size })
    }

    /// Handles of `count` blocks of one pool.
    pub(super) fn pooled(&mut self, count: usize, size: usize) -> Result<Vec<Handle>, Failure> {
        self.handles(&Order::Pooled { count, size })
    }

    /// Handles of `count` regions of one memory file.
    pub(super) fn arena(&mut self, count: usize, size: usize) -> Result<Vec<Handle>, Failure> {
        self.handles(&Order::Arena { count, size })
    }

    /// Handles of `count` blocks in buffers from udmabuf, of one pool.
    pub(super) fn dma_bufs(&mut self, count: usize, size: usize) -> Result<Vec<Handle>, Failure> {
        self.handles(&Order::DmaBuf { count, size })
    }

    /// Handles of `count` blocks of CUDA memory of a kind.
    pub(super) fn cuda(&mut self, memory: &str, count: usize, size: usize) -> Result<Vec<Handle>, Failure> {
        self.handles(&Order::Cuda { memory: memory.to_owned(), count, size })
    }

    /// Handles of the C library.
    pub(super) fn foreign(
        &mut self,
        library: PathBuf,
        settings: Settings,
        count: usize,
        size: usize,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        match self.ask(&Order::Foreign { library, settings, count, size })? {
            Answer::Foreign(handles) => Ok(handles),
            other => Err(unexpected(&other)),
        }
    }

    fn handles(&mut self, order: &Order) -> Result<Vec<Handle>, Failure> {
        match self.ask(order)? {
            Answer::Handles(handles) => Ok(handles),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&mut self, order: &Order) -> Result<Answer, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::Told(format!("the producer {why}"));
        let order = serde_json::to_string(order).map_err(|error| failed(&error))?;
        self.worker.say(&order);
        worker::converse(&mut [&mut self.worker], Duration::from_secs(30), || {})
            .map_err(|(_, silence)| failed(&silence))?;
        self.worker.answer().map_err(|silence| failed(&silence))
    }
}

fn unexpected(answer: &Answer) -> Failure {
    match answer {
        Answer::Failed(why) => Failure::Told(format!("the producer failed: {why}")),
        _ => Failure::Told("the producer said something else than was to come".to_owned()),
    }
}

/// Plays the producer until the launcher has no more orders.
pub(super) fn serve(launcher: u32) -> Result<(), Failure> {
    let Some(mut launcher) = Launcher::listen(launcher)? else { return Ok(()) };
    let pools = Pool::isolated().and_then(|isolated| Ok((isolated, Pool::shared()?)));
    let pools = pools.map_err(told).and_then(|pools| Ok((pools, super::leases::arena()?)));
    let ((isolated, pooled), arena) = match pools {
        Ok(pools) => pools,
        Err(error) => {
            launcher.order::<Order>()?;
            return Ok(launcher.answer(&Answer::Failed(error.to_string()))?);
        }
    };
    let dma_bufs = dma_bufs();
    let (mut blocks, mut libraries) = (Vec::new(), Vec::new());
    while let Some(order) = launcher.order()? {
        let answer = match order {
            Order::Isolated { count, size } => {
                export(&isolated, count, size, &mut blocks).map(Answer::Handles)
            }
            Order::Pooled { count, size } => export(&pooled, count, size, &mut blocks).map(Answer::Handles),
            Order::Arena { count, size } => export(&arena, count, size, &mut blocks).map(Answer::Handles),
            Order::DmaBuf { count, size } => {
                let pool = dma_bufs.as_ref().map_err(told);
                pool.and_then(|pool| export(pool, count, size, &mut blocks)).map(Answer::Handles)
            }
            Order::Cuda { memory, count, size } => cuda_pool(&memory).and_then(|pool| {
                // Until the process ends.
                export(Box::leak(Box::new(pool)), count, size, &mut blocks).map(Answer::Handles)
            }),
            Order::Foreign { library, settings, count, size } => CUmf::open("producer:", &library, settings)
                .and_then(|library| {
                    let handles: Result<_, Refused> =
                        (0..count).map(|_| library.handle(library.allocate(size)?)).collect();
                    libraries.push(library);
                    handles.map(Answer::Foreign).map_err(told)
                }),
        };
        let answer: Result<Answer, Failure> = answer;
        launcher.answer(&answer.unwrap_or_else(|failure| Answer::Failed(failure.to_string())))?;
    }
    Ok(())
}

/// A slab pool; why there is none, where this machine has no such memory.
fn dma_bufs() -> umf::Result<Pool> {
    Pool::builder().provider(umf::dma_buf::DmaBufProvider::udmabuf()?.build()?).build()
}

fn cuda_pool(memory: &str) -> Result<Pool, Failure> {
    let memory = memory.parse().map_err(told)?;
    let provider = umf::cuda::CudaProvider::builder().memory(memory).build();
    Pool::builder().provider(provider.map_err(told)?).build().map_err(told)
}

fn export<'p>(
    pool: &'p Pool,
    count: usize,
    size: usize,
    blocks: &mut Vec<Block<'p>>,
) -> Result<Vec<Handle>, Failure> {
    let mut handles = Vec::new();
    for _ in 0..count {
        let block = pool.allocate(size).map_err(told)?;
        handles.push(block.handle().map_err(told)?);
        blocks.push(block);
    }
    Ok(handles)
}
