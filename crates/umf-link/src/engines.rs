//! [`Engines`]: the engines that can carry messages to this process on a link, and their measured
//! costs. [`LinkStatistics`]: counters of what the engines carried.

use core::fmt;
use std::sync::OnceLock;
use std::time::Instant;

use rustix::io::Errno;

use crate::buffer::Segment;
use crate::kernel_copy::{self, Direction, Iov};
use crate::layout::{CHUNK, LANE, NONCE};
use crate::shared_files::OwnLane;
use crate::{Engine, LinkSettings};

/// The cost of a copy, as a linear function of its length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Nanoseconds for any length.
    pub base: f64,
    /// Nanoseconds for each KiB.
    pub per_kib: f64,
}

impl Cost {
    /// Returns the line through two points of length and nanoseconds.
    fn through(small: (usize, f64), large: (usize, f64)) -> Self {
        let per_byte = ((large.1 - small.1) / (large.0 - small.0) as f64).max(0.0);
        Self { base: (small.1 - per_byte * small.0 as f64).max(0.0), per_kib: per_byte * 1024.0 }
    }

    /// Returns the nanoseconds for this many bytes.
    #[must_use]
    pub fn of(&self, length: usize) -> f64 {
        self.base + self.per_kib * length as f64 / 1024.0
    }
}

/// Approximate nanoseconds that each further entry of a list costs the kernel.
const ENTRY: f64 = 400.0;

/// The engines that can carry messages to this process on a link, and their costs. Costs are
/// measured once in a process. [`fmt::Display`] prints a table.
#[derive(Clone, Debug)]
pub struct Engines {
    forced: Option<Engine>,
    inline_max: usize,
    both_min: usize,
    cma: Result<Cost, String>,
    bounce: Cost,
    mapped: Result<Cost, &'static str>,
}

impl Engines {
    /// Probes the engines. `pid` is the peer's in this pid namespace, and `base` the address at
    /// which the peer has mapped its lane.
    pub(crate) fn probe(
        lane: &OwnLane,
        (pid, base): (i32, u64),
        settings: &LinkSettings,
        has_importer: bool,
    ) -> Self {
        let copy = *COPY.get_or_init(measure_copy);
        let first_chunk = copy.of(CHUNK);
        // Three cache lines travel and the first chunk is copied before both processes copy at
        // once.
        let bounce = Cost { base: 600.0 + first_chunk, per_kib: copy.per_kib * 1.3 };
        let mapped = if has_importer { Ok(copy) } else { Err("this process's endpoint has no importer") };
        Self {
            forced: settings.engine,
            inline_max: settings.inline_max(),
            both_min: settings.both_min,
            cma: cma(lane, pid, base),
            bounce,
            mapped,
        }
    }

    /// Returns the cost of `cma`.
    ///
    /// # Errors
    /// Why `cma` cannot be used, and a remedy.
    pub fn cma(&self) -> Result<Cost, &str> {
        self.cma.as_ref().map(|cost| *cost).map_err(String::as_str)
    }

    /// Returns the cost of `bounce`.
    #[must_use]
    pub const fn bounce(&self) -> Cost {
        self.bounce
    }

    /// Returns the cost of `mapped`.
    ///
    /// # Errors
    /// Why memory of the peer cannot be mapped.
    pub const fn mapped(&self) -> Result<Cost, &'static str> {
        self.mapped
    }

    /// Returns whether `cma` carries a message of this length and number of ranges at the cost of
    /// `bounce` or less.
    pub(crate) fn prefers_cma(&self, length: usize, ranges: usize) -> bool {
        let further = ranges.saturating_sub(1) as f64 * ENTRY;
        self.cma.as_ref().is_ok_and(|cost| cost.of(length) + further <= self.bounce.of(length))
    }

    /// Returns the smallest power of two of bytes from which on `cma` is preferred.
    fn crossover(&self) -> Option<usize> {
        (0..40).map(|power| 1_usize << power).find(|length| self.prefers_cma(*length, 1))
    }
}

fn best(times: u32, mut run: impl FnMut() -> Result<(), Errno>) -> Result<f64, Errno> {
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    Ok(best)
}

const LARGE: usize = CHUNK * 4;

static COPY: OnceLock<Cost> = OnceLock::new();
static CMA: OnceLock<Cost> = OnceLock::new();

fn measure_copy() -> Cost {
    let (from, mut to) = (vec![1_u8; LARGE], vec![0_u8; LARGE]);
    let mut copy = |length: usize| {
        best(3, || {
            to[..length].copy_from_slice(&from[..length]);
            core::hint::black_box(&mut to);
            Ok(())
        })
        .unwrap_or(0.0)
    };
    let small = copy(4096);
    Cost::through((4096, small), (LARGE, copy(LARGE)))
}

/// Copies bytes out of the memory of a process.
fn read(pid: i32, address: u64, to: &mut [u8]) -> Result<(), Errno> {
    let length = to.len();
    let local = [Segment { base: to.as_mut_ptr(), length }.iov()];
    let remote = [Iov { address, length: length as u64 }];
    // SAFETY: `to` has that many bytes. The pid is that of this process, or of the peer, whose
    // socket is open.
    unsafe { kernel_copy::copy(pid, Direction::Read, &local, &remote) }
}

/// Measures kernel copies of this process out of itself, which cost about the same as out of a
/// peer.
fn measure_cma() -> Result<Cost, Errno> {
    let (from, mut to) = (vec![1_u8; LARGE], vec![0_u8; LARGE]);
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let address = from.as_ptr().expose_provenance() as u64;
    let mut time = |length: usize| best(3, || read(pid, address, &mut to[..length]));
    let small = time(4096)?;
    Ok(Cost::through((4096, small), (LARGE, time(LARGE)?)))
}

fn cma(lane: &OwnLane, pid: i32, base: u64) -> Result<Cost, String> {
    if pid <= 0 {
        return Err("the peer is in another pid namespace: run both processes in one".to_owned());
    }
    if base.checked_add(LANE as u64).is_none_or(|end| end > 1 << 57) {
        return Err("the peer's lane is at an impossible address".to_owned());
    }
    // Reads the nonce, because the kernel permits any read of 0 bytes, and because only the peer's
    // lane has the nonce.
    let refused = |errno: Errno| {
        let why = match errno {
            Errno::PERM => {
                "ptrace rights are lacking: the same user, a dumpable process, the same user namespace or one above, and \
                 /proc/sys/kernel/yama/ptrace_scope 0 (or UMF_IPC_PTRACER=any in the peer)"
            }
            Errno::NOSYS => "the kernel lacks the call, or a seccomp filter forbids it",
            Errno::SRCH => "the peer is not in this pid namespace",
            _ => "use another engine",
        };
        format!("process_vm_readv: {errno}: {why}")
    };
    let mut nonce = [0; 16];
    read(pid, base + NONCE[0] as u64, &mut nonce).map_err(refused)?;
    if nonce != lane.nonce().to_le_bytes() {
        return Err("the kernel reads the memory of another process than the peer".to_owned());
    }
    match CMA.get() {
        Some(cost) => Ok(*cost),
        None => measure_cma().map(|cost| *CMA.get_or_init(|| cost)).map_err(refused),
    }
}

impl fmt::Display for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = |cost: Cost| format!("{:.2} us + {:.1} ns/KiB", cost.base / 1000.0, cost.per_kib);
        let crossover = self.crossover();
        writeln!(f, "inline  up to {} B", self.inline_max)?;
        let until =
            crossover.map_or(String::new(), |length| format!(", memory of any kind below {length} B"));
        writeln!(f, "bounce  {}{until}", cost(self.bounce))?;
        match (&self.cma, crossover) {
            (Ok(cma), Some(length)) => {
                writeln!(f, "cma     {}, memory of any kind from {length} B", cost(*cma))?
            }
            (Ok(cma), None) => writeln!(f, "cma     {}, slower than bounce for any length", cost(*cma))?,
            (Err(why), _) => writeln!(f, "cma     refused: {why}")?,
        }
        match self.mapped {
            Ok(copy) => writeln!(f, "mapped  {}, memory of exportable pools", cost(copy))?,
            Err(why) => writeln!(f, "mapped  impossible: {why}")?,
        }
        write!(f, "both    from {} B, where cma or mapped can", self.both_min)?;
        match self.forced {
            Some(engine) => write!(f, "\nset     {engine}, for messages that are not inline"),
            None => Ok(()),
        }
    }
}

/// A number of messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of all these messages.
    pub bytes: u64,
}

impl Carried {
    pub(crate) fn add(&mut self, length: usize) {
        self.messages += 1;
        self.bytes += length as u64;
    }

    const fn and(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }
}

/// Counters of one process on a link. Each process counts what it does itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStatistics {
    /// Messages that were sent, offered or handed over, withdrawn ones included.
    pub sent: Carried,
    /// Messages that were received, by engine: see [`LinkStatistics::received_by`].
    received: [Carried; Engine::ALL.len()],
    /// Messages that were received as a view.
    pub viewed: Carried,
    /// Chunks that this process, as the sender, copied into the receiver's memory.
    pub pushed: Carried,
    /// Chunks that this process, as the sender, copied into its bounce area.
    pub bounced: Carried,
    /// One-sided transfers to the peer's memory.
    pub put: Carried,
    /// One-sided transfers from the peer's memory.
    pub got: Carried,
    /// Requests of the peer that this process carried out for the peer's one-sided transfers.
    pub served: Carried,
    /// Messages that arrived before their receive.
    pub unexpected: Carried,
    /// Times that `cma` failed.
    pub refused_cma: u64,
    /// Times that memory of the peer could not be opened.
    pub refused_mapped: u64,
    /// Messages that were withdrawn by this process or by the peer.
    pub withdrawn: u64,
}

impl LinkStatistics {
    /// Returns the messages that were received by an engine.
    #[must_use]
    pub const fn received_by(&self, engine: Engine) -> Carried {
        self.received[engine as usize]
    }

    /// Returns the messages that were received by any engine or as a view.
    #[must_use]
    pub fn received(&self) -> Carried {
        self.received.iter().fold(self.viewed, |sum, one| sum.and(*one))
    }

    pub(crate) fn add_received(&mut self, engine: Engine, length: usize) {
        self.received[engine as usize].add(length);
    }

    /// Returns the sums of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            sent: self.sent.and(other.sent),
            received: core::array::from_fn(|engine| self.received[engine].and(other.received[engine])),
            viewed: self.viewed.and(other.viewed),
            pushed: self.pushed.and(other.pushed),
            bounced: self.bounced.and(other.bounced),
            put: self.put.and(other.put),
            got: self.got.and(other.got),
            served: self.served.and(other.served),
            unexpected: self.unexpected.and(other.unexpected),
            refused_cma: self.refused_cma + other.refused_cma,
            refused_mapped: self.refused_mapped + other.refused_mapped,
            withdrawn: self.withdrawn + other.withdrawn,
        }
    }
}
