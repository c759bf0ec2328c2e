//! A rank of the demo: a process that serves the launcher's requests.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umf::ipc::CacheStatistics;
use umf::{Block, Handle, Mapping, Pool};

use super::Plan;
use super::report::OpenResources;
use crate::child::Parent;

/// The most handles of a pass over cached handles: so few that the pass measures umf's cache
/// without cache misses of the processor.
const PASS_HANDLES: usize = 1024;
/// Bytes that are written, checked and copied at a time.
const CHUNK: usize = 1 << 20;
/// Duration of each of the three measurements.
pub(super) const MEASURE_TIME: Duration = Duration::from_millis(50);
/// The longest wait for resources to be released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A request of the launcher to a rank. Each has one reply.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Allocates, fills and exports the blocks. Replies with their handles.
    Export,
    /// Opens another rank's blocks and checks their contents.
    Open { owner: u32, handles: Vec<Handle> },
    /// Writes into the opened blocks of the rank that is `distance` before this one, modulo the
    /// number of ranks.
    Answer { distance: u32 },
    /// Checks the replies of the rank that is `distance` after this one, in this rank's blocks.
    Verify { distance: u32 },
    /// Times cached exports and opens, and copies.
    Measure,
    /// Closes all mappings and frees the blocks.
    Free,
    /// Opens handles of blocks that other ranks have freed, which must fail as stale.
    OpenStale,
    /// Evicts all idle cache entries.
    EmptyCaches,
    /// Drops the pool, and replies with the report.
    Leave,
}

/// The results of a rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct RankReport {
    pub process: u32,
    pub exported: u64,
    pub opened: u64,
    pub times: Times,
    /// Counters at the end of the run. Entries, bytes and fds are those while all blocks were open.
    pub importer: CacheStatistics,
    pub exporter: CacheStatistics,
    /// Handles of freed blocks for which `open` returned `Stale`.
    pub stale_refused: u64,
    pub before: OpenResources,
    pub after: OpenResources,
    /// Nonce of this producer, which is part of the name of its socket.
    pub nonce: Option<String>,
}

/// Median times; `None` without samples.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub get_cold_ns: Option<f64>,
    pub get_cached_ns: Option<f64>,
    /// First open of a handle of a producer: finds the process and maps its ledger.
    pub open_first_ns: Option<f64>,
    pub open_cold_ns: Option<f64>,
    pub open_cached_ns: Option<f64>,
    /// Copies from mappings into private memory.
    pub copy_bytes_per_s: Option<f64>,
}

/// The reason why a rank fails.
#[derive(Debug, thiserror::Error)]
enum RankError {
    #[error(transparent)]
    Umf(#[from] umf::Error),
    #[error("{what} of rank {owner}, block {index}: {error}")]
    Block { what: &'static str, owner: u32, index: u32, error: umf::Error },
    #[error(
        "block {index} of rank {owner} has not the contents that rank {writer} wrote, in the {CHUNK} bytes from {offset}"
    )]
    Content { owner: u32, index: u32, writer: u32, offset: usize },
    #[error("block {index} of rank {owner} was freed, and its handle {outcome}")]
    NotStale { owner: u32, index: usize, outcome: String },
}

/// Serves requests until the launcher closes the channel.
///
/// # Errors
/// The channel to the launcher fails. Other errors are sent as replies.
pub(super) fn serve() -> std::io::Result<()> {
    let mut launcher = Parent::listen()?;
    let Some((plan, number)) = launcher.next_request::<(Plan, u32)>()? else { return Ok(()) };
    let prepared = warm_up(&plan).and_then(|report| Ok((plan.pool()?, report)));
    launcher.reply(&prepared.as_ref().map(|_| ()).map_err(ToString::to_string))?;
    let Ok((pool, report)) = prepared else { return Ok(()) };
    let report = serve_requests(&plan, number, &pool, report, &mut launcher)?;
    drop(pool);
    let after = wait_until_released(&report.before);
    // A leak checker of the driver then finds nothing.
    umf::level_zero::release_unused();
    launcher.reply(&Ok::<_, String>(RankReport { after, ..report }))
}

/// Serves requests until [`Request::Leave`].
fn serve_requests(
    plan: &Plan,
    number: u32,
    pool: &Pool,
    report: RankReport,
    launcher: &mut Parent,
) -> std::io::Result<RankReport> {
    let times = <[_; 3]>::default();
    let mut rank = Rank { plan, number, pool, blocks: Vec::new(), opened: Vec::new(), times, report };
    while let Some(request) = launcher.next_request()? {
        let done = match request {
            Request::Export => {
                launcher.reply(&rank.export().map_err(|error| error.to_string()))?;
                continue;
            }
            Request::Open { owner, handles } => rank.open(owner, handles),
            Request::Answer { distance } => rank.answer(distance),
            Request::Verify { distance } => rank.verify(distance),
            Request::Measure => rank.measure(),
            Request::Free => {
                rank.free();
                Ok(())
            }
            Request::OpenStale => rank.open_stale(),
            Request::EmptyCaches => rank.empty_caches(),
            Request::Leave => break,
        };
        launcher.reply(&done.map_err(|error| error.to_string()))?;
    }
    Ok(rank.report)
}

/// Creates the resources that a process has once: ledger, socket, driver of a device. Then takes
/// the baseline for leaked resources.
fn warm_up(plan: &Plan) -> umf::Result<RankReport> {
    let pool = plan.pool()?;
    let (exporter, importer) = (umf::exporter()?, umf::importer()?);
    let block = pool.allocate(1)?;
    let export = block.export()?;
    if plan.provider.is_some() {
        umf::open(export.handle())?.read(0, &mut [0])?;
    }
    drop(export);
    drop(block);
    drop(pool);
    importer.evict_idle();
    exporter.evict_idle();
    let nonce = exporter.nonce().map(|nonce| nonce.to_string());
    Ok(RankReport {
        process: std::process::id(),
        nonce,
        before: OpenResources::now(),
        ..RankReport::default()
    })
}

/// Counts resources after the rank has dropped everything. Waits for the socket's thread, which
/// needs a moment to notice that a reader is gone.
pub(super) fn wait_until_released(before: &OpenResources) -> OpenResources {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let now = OpenResources::now();
        if now.leaked_since(before).is_empty() || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Another rank's blocks, opened in this process.
struct Opened {
    owner: u32,
    handles: Vec<Handle>,
    mappings: Vec<Mapping<'static>>,
}

struct Rank<'a> {
    plan: &'a Plan,
    number: u32,
    pool: &'a Pool,
    blocks: Vec<Block<'a>>,
    opened: Vec<Opened>,
    /// Times of the first export of each block, of the first open of each owner, and of the other
    /// opens.
    times: [Vec<f64>; 3],
    report: RankReport,
}

impl Rank<'_> {
    fn export(&mut self) -> Result<Vec<Handle>, RankError> {
        let mut handles = Vec::new();
        for index in 0..self.plan.blocks {
            let owner = self.number;
            let block_error = |error| RankError::Block { what: "making a block", owner, index, error };
            let block = self.pool.allocate(self.plan.size).map_err(block_error)?;
            let content = Content::new(self.plan, owner, index, owner);
            content.write(|offset, bytes| block.write(offset, bytes)).map_err(block_error)?;
            let export = timed(&mut self.times[0], || block.export());
            handles.push(export.map_err(block_error)?.keep());
            self.blocks.push(block);
        }
        self.report.exported = handles.len() as u64;
        Ok(handles)
    }

    fn open(&mut self, owner: u32, handles: Vec<Handle>) -> Result<(), RankError> {
        let mut mappings = Vec::new();
        for (index, handle) in (0..).zip(&handles) {
            let block_error = |error| RankError::Block { what: "opening", owner, index, error };
            let mapping = timed(&mut self.times[if index == 0 { 1 } else { 2 }], || umf::open(handle));
            let mapping = mapping.map_err(block_error)?;
            let content = Content::new(self.plan, owner, index, owner);
            let read = |offset, bytes: &mut [u8]| mapping.read(offset, bytes);
            content.check(read).map_err(|error| block_error(error.into()))??;
            mappings.push(mapping);
        }
        self.report.opened += mappings.len() as u64;
        self.opened.push(Opened { owner, handles, mappings });
        Ok(())
    }

    fn answer(&mut self, distance: u32) -> Result<(), RankError> {
        let owner = (self.number + self.plan.ranks - distance) % self.plan.ranks;
        let opened = self.opened.iter().filter(|opened| opened.owner == owner);
        for (index, mapping) in (0..).zip(opened.flat_map(|opened| &opened.mappings)) {
            let content = Content::new(self.plan, owner, index, self.number);
            content.write(|offset, bytes| mapping.write(offset, bytes)).map_err(|error| {
                RankError::Block { what: "answering in the mapping", owner, index, error: error.into() }
            })?;
        }
        Ok(())
    }

    fn verify(&mut self, distance: u32) -> Result<(), RankError> {
        let owner = self.number;
        let writer = (owner + distance) % self.plan.ranks;
        for (index, block) in (0..).zip(&self.blocks) {
            let content = Content::new(self.plan, owner, index, writer);
            let read = |offset, bytes: &mut [u8]| block.read(offset, bytes);
            let block_error = |error| RankError::Block { what: "reading", owner, index, error };
            content.check(read).map_err(block_error)??;
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<(), RankError> {
        let (exporter, importer) = (umf::exporter()?, umf::importer()?);
        let addresses: Vec<_> = self.blocks.iter().take(PASS_HANDLES).map(Block::address).collect();
        let get_cached_ns = median_of_passes(addresses.len(), || {
            // SAFETY: the blocks belong to this rank, and are accessed by copies only.
            let get = |address| unsafe { exporter.get(address) }.map(drop);
            addresses.iter().try_for_each(|address| get(*address)).map_err(umf::Error::from)
        })?;
        let handles: Vec<_> =
            self.opened.iter().flat_map(|opened| &opened.handles).take(PASS_HANDLES).collect();
        let open_cached_ns = median_of_passes(handles.len(), || {
            handles.iter().try_for_each(|handle| importer.open(handle).map(drop)).map_err(umf::Error::from)
        })?;
        let mappings: Vec<_> = self.opened.iter().flat_map(|opened| &opened.mappings).collect();
        let mappings = &mappings[..mappings.len().min((CHUNK / self.plan.size).max(1))];
        let mut into = vec![0; CHUNK.min(self.plan.size)];
        let copy_ns = median_of_passes(mappings.len() * into.len(), || {
            for mapping in mappings {
                mapping.read(0, &mut into)?;
                std::hint::black_box(&mut into);
            }
            Ok(())
        })?;
        let [get_cold_ns, open_first_ns, open_cold_ns] = std::mem::take(&mut self.times).map(median);
        let copy_bytes_per_s = copy_ns.map(|nanoseconds| 1e9 / nanoseconds);
        self.report.times = Times {
            get_cold_ns,
            get_cached_ns,
            open_first_ns,
            open_cold_ns,
            open_cached_ns,
            copy_bytes_per_s,
        };
        (self.report.importer, self.report.exporter) = (importer.statistics(), exporter.statistics());
        Ok(())
    }

    fn free(&mut self) {
        self.opened.iter_mut().for_each(|opened| opened.mappings.clear());
        self.blocks.clear();
    }

    fn open_stale(&mut self) -> Result<(), RankError> {
        for Opened { owner, handles, .. } in &self.opened {
            let Some((index, handle)) = handles.iter().enumerate().next_back() else { continue };
            let outcome = match umf::open(handle) {
                Err(umf::Error::Ipc(umf::ipc::Error::Stale { .. })) => {
                    self.report.stale_refused += 1;
                    continue;
                }
                Err(error) => format!("failed with another error than stale: {error}"),
                Ok(_) => "can still be opened".to_owned(),
            };
            return Err(RankError::NotStale { owner: *owner, index, outcome });
        }
        Ok(())
    }

    fn empty_caches(&mut self) -> Result<(), RankError> {
        let (exporter, importer) = (umf::exporter()?, umf::importer()?);
        for (report, now) in [
            (&mut self.report.importer, importer.statistics()),
            (&mut self.report.exporter, exporter.statistics()),
        ] {
            let CacheStatistics { entries, bytes, fds, .. } = *report;
            *report = now;
            (report.entries, report.bytes, report.fds) = (entries, bytes, fds);
        }
        importer.evict_idle();
        exporter.evict_idle();
        Ok(())
    }
}

/// The contents that a writer puts into a block: bytes that depend on run, block, writer and
/// offset.
struct Content<'a> {
    plan: &'a Plan,
    owner: u32,
    index: u32,
    writer: u32,
}

impl<'a> Content<'a> {
    fn new(plan: &'a Plan, owner: u32, index: u32, writer: u32) -> Content<'a> {
        Content { plan, owner, index, writer }
    }

    /// Returns the chunks of the contents with their offsets.
    fn chunks(&self) -> impl Iterator<Item = (usize, Vec<u8>)> {
        let seed = mix(self.plan.run) ^ mix(u64::from(self.owner) << 32 | u64::from(self.index));
        let seed = mix(seed ^ u64::from(self.writer));
        let size = self.plan.size;
        (0..size).step_by(CHUNK).map(move |offset| {
            let end = size.min(offset + CHUNK);
            let words = (offset / 8..end.div_ceil(8)).flat_map(|word| mix(seed ^ word as u64).to_le_bytes());
            (offset, words.take(end - offset).collect())
        })
    }

    fn write<E>(&self, write: impl Fn(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        self.chunks().try_for_each(|(offset, bytes)| write(offset, &bytes))
    }

    /// Reads the block and compares it. The inner error reports different contents.
    fn check<E>(&self, read: impl Fn(usize, &mut [u8]) -> Result<(), E>) -> Result<Result<(), RankError>, E> {
        for (offset, expected) in self.chunks() {
            let mut found = vec![0; expected.len()];
            read(offset, &mut found)?;
            if found != expected {
                let Content { owner, index, writer, .. } = *self;
                return Ok(Err(RankError::Content { owner, index, writer, offset }));
            }
        }
        Ok(Ok(()))
    }
}

/// Mixes the bits of a word (finaliser of SplitMix64).
pub(super) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Runs `run` and appends its duration in nanoseconds to `times`.
fn timed<T>(times: &mut Vec<f64>, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    times.push(start.elapsed().as_nanos() as f64);
    result
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Runs passes of `count` operations each. Returns the median nanoseconds per operation, or `None`
/// if `count` is 0.
fn median_of_passes(count: usize, mut pass: impl FnMut() -> umf::Result<()>) -> umf::Result<Option<f64>> {
    if count == 0 {
        return Ok(None);
    }
    let (end, mut times) = (Instant::now() + MEASURE_TIME, Vec::new());
    while times.len() < 3 || Instant::now() < end {
        timed(&mut times, &mut pass)?;
    }
    Ok(median(times).map(|nanoseconds| nanoseconds / count as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_detects_changed_byte_and_other_writer() {
        for size in [1, 7, 8, CHUNK, CHUNK + 1, 2 * CHUNK + 13] {
            let plan = Plan { provider: None, ranks: 3, blocks: 1, size, run: 1 };
            let mut memory: Vec<u8> =
                Content::new(&plan, 1, 2, 1).chunks().flat_map(|(_, bytes)| bytes).collect();
            assert_eq!(memory.len(), size);
            let is_right = |memory: &[u8], writer, run| {
                let plan = Plan { run, ..plan.clone() };
                let read = |offset: usize, bytes: &mut [u8]| {
                    bytes.copy_from_slice(&memory[offset..offset + bytes.len()]);
                    Ok::<(), ()>(())
                };
                Content::new(&plan, 1, 2, writer).check(read).unwrap().is_ok()
            };
            assert!(is_right(&memory, 1, 1) && !is_right(&memory, 2, 1) && !is_right(&memory, 1, 2));
            memory[size - 1] ^= 1;
            assert!(!is_right(&memory, 1, 1));
        }
    }
}
