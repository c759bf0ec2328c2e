//! One process of the demo: does what it is told, and answers.

use std::time::{Duration, Instant};

use umf::ipc::CacheStatistics;
use umf::{Block, Handle, Mapping, Pool};

use super::census::Census;
use super::content::Content;
use super::plan::{Plan, Round};
use super::words::{Answer, Counters, Order, Report};
use crate::failure::Failure;
use crate::timing;
use crate::worker::Launcher;

/// The most handles that one pass over cached ones takes: few enough that what is timed is the cache, not the
/// processor's.
const PASS: usize = 1024;
/// What is copied at a time, in bytes.
const COPY: usize = 1 << 20;
const SETTLING: Duration = Duration::from_secs(2);

/// Plays rank `number` until the launcher has no more orders.
///
/// # Errors
/// The launcher cannot be spoken to. What else goes wrong is an answer.
pub(super) fn play(plan: &Plan, number: u32) -> Result<(), Failure> {
    let Some(mut launcher) = Launcher::listen(plan.launcher)? else { return Ok(()) };
    let answer = match take_part(plan, number, &mut launcher)? {
        Ok(report) => Answer::Left(Box::new(Report { after: settled(&report.before), ..report })),
        Err(why) => Answer::Failed(why.to_string()),
    };
    launcher.answer(&answer)?;
    Ok(())
}

/// Obeys until it is time to leave.
fn take_part(plan: &Plan, number: u32, launcher: &mut Launcher) -> std::io::Result<Result<Report, Trouble>> {
    let (pool, report) = match warm_up(plan) {
        Ok(warm) => warm,
        Err(error) => return launcher.order::<Order>().map(|_| Err(error.into())),
    };
    let mut rank = Rank::new(plan, number, &pool, report);
    while let Some(order) = launcher.order()? {
        match rank.obey(order) {
            Ok(Some(answer)) => launcher.answer(&answer)?,
            Ok(None) => break,
            Err(trouble) => return Ok(Err(trouble)),
        }
    }
    Ok(Ok(rank.report))
}

/// What is here once everything that the rank had is gone. The thread that serves the socket may need a moment to see
/// that a reader has left.
fn settled(before: &Census) -> Census {
    let deadline = Instant::now() + SETTLING;
    loop {
        let now = Census::now();
        if now.more_than(before).is_empty() || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes what a process has one of (its ledger, the socket if the settings call for one, a device's driver), so that only what
/// comes after that counts as left behind.
fn warm_up(plan: &Plan) -> umf::Result<(Pool, Report)> {
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
    let report = Report {
        process: std::process::id(),
        nonce: exporter.nonce().map(|nonce| nonce.to_string()),
        before: Census::now(),
        ..Report::default()
    };
    Ok((plan.pool()?, report))
}

/// Why a rank gives up.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Umf(#[from] umf::Error),
    #[error("{what} of rank {owner}, block {index}: {error}")]
    Block { what: &'static str, owner: u32, index: u32, error: umf::Error },
    #[error("block {index} of rank {owner} does not hold what rank {writer} wrote, from byte {offset} on")]
    Content { owner: u32, index: u32, writer: u32, offset: usize },
    #[error("block {index} of rank {owner} was freed, and its handle {outcome}")]
    NotStale { owner: u32, index: u32, outcome: String },
}

/// Another rank's blocks, open here.
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
    get_cold: Vec<f64>,
    open_first: Vec<f64>,
    open_cold: Vec<f64>,
    report: Report,
}

impl<'a> Rank<'a> {
    fn new(plan: &'a Plan, number: u32, pool: &'a Pool, report: Report) -> Rank<'a> {
        Rank {
            plan,
            number,
            pool,
            blocks: Vec::new(),
            opened: Vec::new(),
            get_cold: Vec::new(),
            open_first: Vec::new(),
            open_cold: Vec::new(),
            report,
        }
    }

    /// Obeys; `None` when it is time to leave.
    fn obey(&mut self, order: Order) -> Result<Option<Answer>, Trouble> {
        match order {
            Order::Export => return Ok(Some(Answer::Exported(self.export()?))),
            Order::Open { owner, handles } => self.open(owner, handles)?,
            Order::Answer(round) => self.answer(round)?,
            Order::Verify(round) => self.verify(round)?,
            Order::Measure => self.measure()?,
            Order::Free => self.free(),
            Order::OpenStale => self.open_stale()?,
            Order::LetGo => self.let_go(),
            Order::Leave => return Ok(None),
        }
        Ok(Some(Answer::Done))
    }

    fn export(&mut self) -> Result<Vec<Handle>, Trouble> {
        let mut handles = Vec::new();
        for index in 0..self.plan.blocks {
            let owner = self.number;
            let trouble = |error| Trouble::Block { what: "making a block", owner, index, error };
            let block = self.pool.allocate(self.plan.size).map_err(trouble)?;
            Content::of_owner(self.plan.run, owner, index)
                .put(0..self.plan.size, |offset, bytes| block.write(offset, bytes))
                .map_err(trouble)?;
            let (time, export) = timing::nanoseconds(|| block.export());
            self.get_cold.push(time);
            handles.push(export.map_err(trouble)?.keep());
            self.blocks.push(block);
        }
        self.report.exported = handles.len() as u64;
        Ok(handles)
    }

    fn open(&mut self, owner: u32, handles: Vec<Handle>) -> Result<(), Trouble> {
        let mut mappings = Vec::new();
        for (index, handle) in (0..).zip(&handles) {
            let trouble = |error| Trouble::Block { what: "opening", owner, index, error };
            let (time, mapping) = timing::nanoseconds(|| umf::open(handle));
            let times = if index == 0 { &mut self.open_first } else { &mut self.open_cold };
            times.push(time);
            let mapping = mapping.map_err(trouble)?;
            let wrong = Content::of_owner(self.plan.run, owner, index)
                .check(0..self.plan.size, |offset, bytes| mapping.read(offset, bytes))
                .map_err(|error| trouble(error.into()))?;
            if let Some(offset) = wrong {
                return Err(Trouble::Content { owner, index, writer: owner, offset });
            }
            mappings.push(mapping);
        }
        self.report.opened += mappings.len() as u64;
        self.opened.push(Opened { owner, handles, mappings });
        Ok(())
    }

    fn answer(&self, round: Round) -> Result<(), Trouble> {
        for opened in &self.opened {
            let owner = opened.owner;
            let distance = self.plan.distance(owner, self.number);
            if !round.has(distance) {
                continue;
            }
            for (index, mapping) in (0..).zip(&opened.mappings) {
                Content::of_reader(self.plan.run, owner, index, self.number)
                    .put(self.plan.answer_place(distance), |offset, bytes| mapping.write(offset, bytes))
                    .map_err(|error| Trouble::Block {
                        what: "answering in the mapping",
                        owner,
                        index,
                        error: error.into(),
                    })?;
            }
        }
        Ok(())
    }

    fn verify(&self, round: Round) -> Result<(), Trouble> {
        let owner = self.number;
        for distance in round.first..=round.last {
            let writer = (owner + distance) % self.plan.ranks;
            for (index, block) in (0..).zip(&self.blocks) {
                let wrong = Content::of_reader(self.plan.run, owner, index, writer)
                    .check(self.plan.answer_place(distance), |offset, bytes| block.read(offset, bytes))
                    .map_err(|error| Trouble::Block { what: "reading", owner, index, error })?;
                if let Some(offset) = wrong {
                    return Err(Trouble::Content { owner, index, writer, offset });
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<(), Trouble> {
        let time = Duration::from_millis(self.plan.measure_ms) / 3;
        let exporter = umf::exporter()?;
        let addresses: Vec<_> = self.blocks.iter().take(PASS).map(Block::address).collect();
        let gets = timing::batches(time, || {
            // SAFETY: blocks of this rank, which are touched by copies alone.
            addresses.iter().try_for_each(|address| unsafe { exporter.get(*address) }.map(drop))?;
            Ok::<_, umf::ipc::Error>(addresses.len() as u64)
        });
        let handles: Vec<_> = self.opened.iter().flat_map(|opened| &opened.handles).take(PASS).collect();
        let importer = umf::importer()?;
        let opens = timing::batches(time, || {
            handles.iter().try_for_each(|handle| importer.open(handle).map(drop))?;
            Ok::<_, umf::ipc::Error>(handles.len() as u64)
        });
        let copies = self.copies(time)?;
        let times = &mut self.report.times;
        times.get_cold_ns = timing::median(std::mem::take(&mut self.get_cold));
        times.get_cached_ns = timing::median(gets.map_err(umf::Error::from)?);
        times.open_first_ns = timing::median(std::mem::take(&mut self.open_first));
        times.open_cold_ns = timing::median(std::mem::take(&mut self.open_cold));
        times.open_cached_ns = timing::median(opens.map_err(umf::Error::from)?);
        times.copy_bytes_per_s = timing::median(copies).map(|ns_per_byte| 1e9 / ns_per_byte);
        self.report.importer = held(importer.statistics());
        self.report.exporter = held(exporter.statistics());
        Ok(())
    }

    /// Nanoseconds per byte of copies out of everything that is open.
    fn copies(&self, time: Duration) -> Result<Vec<f64>, Trouble> {
        let mappings: Vec<_> = self.opened.iter().flat_map(|opened| &opened.mappings).collect();
        let mut into = vec![0; COPY.min(self.plan.size)];
        let mut next = mappings.iter().cycle();
        let copy = || -> umf::Result<u64> {
            let mut copied = 0;
            // About a megabyte at a time.
            while copied < COPY {
                let Some(mapping) = next.next() else { break };
                let mut offset = 0;
                while offset < mapping.len().min(COPY) {
                    let part = into.len().min(mapping.len() - offset);
                    mapping.read(offset, &mut into[..part])?;
                    std::hint::black_box(&mut into);
                    offset += part;
                }
                copied += offset;
            }
            Ok(copied as u64)
        };
        Ok(timing::batches(time, copy)?)
    }

    fn free(&mut self) {
        for opened in &mut self.opened {
            opened.mappings.clear();
        }
        self.blocks.clear();
    }

    fn open_stale(&mut self) -> Result<(), Trouble> {
        for Opened { owner, handles, .. } in &self.opened {
            let (owner, index) = (*owner, handles.len().saturating_sub(1));
            let Some(handle) = handles.get(index) else { continue };
            let outcome = match umf::open(handle) {
                Err(umf::Error::Ipc(umf::ipc::Error::Stale { .. })) => {
                    self.report.stale_refused += 1;
                    continue;
                }
                Err(error) => format!("failed otherwise than as stale: {error}"),
                Ok(_) => "can still be opened".to_owned(),
            };
            return Err(Trouble::NotStale { owner, index: index as u32, outcome });
        }
        Ok(())
    }

    /// Closes what the caches keep.
    fn let_go(&mut self) {
        self.free();
        if let (Ok(exporter), Ok(importer)) = (umf::exporter(), umf::importer()) {
            done(&mut self.report.importer, importer.statistics());
            done(&mut self.report.exporter, exporter.statistics());
            importer.evict_idle();
            exporter.evict_idle();
        }
    }
}

fn held(statistics: CacheStatistics) -> Counters {
    Counters {
        held_entries: statistics.entries,
        held_bytes: statistics.bytes,
        held_fds: statistics.fds,
        ..Counters::default()
    }
}

fn done(counters: &mut Counters, statistics: CacheStatistics) {
    counters.hits = statistics.hits;
    counters.table_hits = statistics.table_hits;
    counters.misses = statistics.misses;
    counters.stale = statistics.stale;
    counters.evictions = statistics.evictions;
}
