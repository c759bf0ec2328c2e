//! [`Worker`]: a process with exporters, importers and threads, and the check at its end that it
//! holds what it held at its start.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use umf::host::HostProvider;
use umf::ipc::{ExporterSettings, ImporterSettings, LimitPolicy};
use umf::pools::{SlabPool, SlabSettings};
use umf::{Exchange, Exporter, Importer, Mode};
use umf_runtime::deferred;
use umf_tests::{ProcessSnapshot, Rng, machine};

use crate::checker::{Guarantee, violation};
use crate::pools::{PoolMaker, imports, name_prefix, own_pid};
use crate::settings::Settings;
use crate::shared::{self, Activity, Counter, Identity, Shared, count};
use crate::{diagnosis, domains, importer, links, producer, second_copy};

/// Parameters of a worker, which the campaign passes as arguments.
#[derive(Clone, Copy, Debug)]
pub struct Assignment {
    pub run: u32,
    pub identity: Identity,
    pub seed: u64,
    pub life: Duration,
    pub role: Role,
    /// Whether the worker has its own pid namespace.
    pub namespace: bool,
}

/// The part of the library that a worker uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Blocks,
    Domains,
    Links,
    SecondCopy,
}

impl Role {
    const ALL: [(&'static str, Self); 4] = [
        ("blocks", Self::Blocks),
        ("domains", Self::Domains),
        ("links", Self::Links),
        ("second-copy", Self::SecondCopy),
    ];
}

impl Assignment {
    /// Encodes the parameters as arguments.
    pub fn arguments(&self) -> Vec<String> {
        let role = Role::ALL.iter().find(|(_, role)| *role == self.role).map_or("", |(name, _)| name);
        vec![
            "worker".to_owned(),
            run_tag(self.run),
            self.identity.index.to_string(),
            self.identity.incarnation.to_string(),
            self.seed.to_string(),
            self.life.as_millis().to_string(),
            role.to_owned(),
            u8::from(self.namespace).to_string(),
        ]
    }

    /// Decodes the arguments after the first.
    pub fn from_arguments(arguments: &[String]) -> Option<Self> {
        let [tag, index, incarnation, seed, life, role, namespace] = arguments else { return None };
        Some(Self {
            run: tag.strip_prefix("hostile-run=")?.parse().ok()?,
            identity: Identity { index: index.parse().ok()?, incarnation: incarnation.parse().ok()? },
            seed: seed.parse().ok()?,
            life: Duration::from_millis(life.parse().ok()?),
            role: Role::ALL.iter().find(|(name, _)| name == role)?.1,
            namespace: namespace == "1",
        })
    }
}

/// Returns an argument that all processes of a run have, by which the campaign finds them.
pub fn run_tag(run: u32) -> String {
    format!("hostile-run={run}")
}

/// An exporter, and whether it answers on a socket.
pub struct WorkerExporter {
    pub exporter: Exporter,
    pub served: bool,
}

/// The only exchange mode that an importer permits, or `None` for all.
pub type OnlyMode = Option<Mode>;

/// An importer, and the exchange modes that it permits.
pub struct WorkerImporter {
    pub importer: Importer,
    pub only: OnlyMode,
}

/// The objects that all threads of a worker use.
pub struct Worker<'s> {
    pub shared: &'static Shared,
    pub settings: &'s Settings,
    pub identity: Identity,
    pub maker: PoolMaker<'s>,
    pub exporters: Vec<WorkerExporter>,
    pub importers: Vec<WorkerImporter>,
    /// A private pool, which also works in forked children.
    pub private: Arc<SlabPool>,
    pub namespace: bool,
    pub user: bool,
    threads: AtomicUsize,
}

/// One thread of a worker.
pub struct Thread<'w> {
    pub worker: &'w Worker<'w>,
    pub random: Rng,
    number: usize,
}

impl Thread<'_> {
    /// Reports progress, and the next activity.
    pub fn tick(&self, activity: Activity) {
        self.worker.shared.workers[self.worker.identity.index].tick(self.number, activity);
    }

    /// Returns whether the thread continues.
    pub fn is_running(&self, end: Instant) -> bool {
        !self.worker.shared.has_stopped() && Instant::now() < end
    }

    /// Sleeps for a random time below `below`.
    pub fn pause(&mut self, below: Duration) {
        let nanoseconds = self.random.below(below.as_nanos() as u64);
        std::thread::sleep(Duration::from_nanos(nanoseconds));
    }
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        self.tick(Activity::Ended);
    }
}

impl<'s> Worker<'s> {
    fn new(assignment: &Assignment, settings: &'s Settings, random: &mut Rng) -> umf::ipc::Result<Self> {
        let namespace = assignment.namespace;
        let exporter = |random: &mut Rng| -> umf::ipc::Result<WorkerExporter> {
            let served = namespace || random.one_in(2);
            Ok(WorkerExporter { exporter: Exporter::new(exporter_settings(random, served))?, served })
        };
        let exporters = (0..=random.below(2)).map(|_| exporter(random)).collect::<Result<_, _>>()?;
        // The first importer permits all modes, so that most opens succeed.
        let first = new_importer(settings, random, None)?;
        let mut importers = vec![WorkerImporter { importer: first, only: None }];
        for _ in 0..random.below(3) {
            let only = random_mode(random);
            importers.push(WorkerImporter { importer: new_importer(settings, random, only)?, only });
        }
        let provider = HostProvider::builder().build()?;
        Ok(Self {
            shared: shared::get(),
            settings,
            identity: assignment.identity,
            maker: PoolMaker { settings, run: assignment.run },
            exporters,
            importers,
            private: SlabPool::new(provider, SlabSettings::new())?,
            namespace,
            user: !machine::is_root(),
            threads: AtomicUsize::new(1),
        })
    }

    /// Creates the state of a new thread.
    pub fn thread(&self, seed: u64) -> Thread<'_> {
        let number = self.threads.fetch_add(1, Ordering::Relaxed);
        Thread { worker: self, random: Rng::new(seed), number }
    }
}

fn exporter_settings(random: &mut Rng, served: bool) -> ExporterSettings {
    let mut settings = ExporterSettings::default();
    let modes: &[Mode] =
        if served { &[Mode::Pidfd, Mode::Procfs, Mode::Socket] } else { &[Mode::Pidfd, Mode::Procfs] };
    settings.exchange = Exchange::Order(modes.to_vec());
    settings.max_created_handles = *random.choose(&[0, 0, 1, 2, 5, 50]);
    settings.limit = if random.one_in(5) { LimitPolicy::Hard } else { LimitPolicy::Soft };
    if random.one_in(3) {
        settings.slots = 64 + random.below(4000) as u32;
    }
    settings
}

/// Returns one mode, or `None` for all.
pub fn random_mode(random: &mut Rng) -> OnlyMode {
    *random.choose(&[None, Some(Mode::Pidfd), Some(Mode::Procfs), Some(Mode::Socket)])
}

/// Creates an importer with random limits.
///
/// # Errors
/// The errors of the builder.
pub fn new_importer(settings: &Settings, random: &mut Rng, only: OnlyMode) -> umf::ipc::Result<Importer> {
    let mut own = ImporterSettings::default();
    own.exchange = only.map_or(Exchange::Auto, |mode| Exchange::Order(vec![mode]));
    own.max_opened_handles = *random.choose(&[0, 0, 1, 2, 3, 8, 64]);
    if random.one_in(4) {
        own.max_opened_bytes = 4096 << random.below(28);
    }
    own.limit = if random.one_in(4) { LimitPolicy::Hard } else { LimitPolicy::Soft };
    own.shards = 1 << random.below(5);
    let builder = Importer::builder().settings(own);
    imports(settings).into_iter().fold(builder, |builder, import| builder.import(import)).build()
}

/// Runs a worker. Returns its exit code.
pub fn run(assignment: &Assignment, settings: &Settings) -> i32 {
    diagnosis::install_crash_handler();
    let shared = shared::get();
    let state = &shared.workers[assignment.identity.index];
    state.pid.store(own_pid(), Ordering::SeqCst);
    let end = Instant::now() + assignment.life;
    let mut random = Rng::new(assignment.seed);
    match assignment.role {
        Role::Blocks => blocks(assignment, settings, &mut random, end),
        Role::Domains => domains::run(assignment, &mut random, end),
        Role::Links => links::run(assignment, &mut random, end),
        Role::SecondCopy => second_copy::run(assignment, &mut random, end),
    }
    state.ending.store(assignment.identity.incarnation, Ordering::SeqCst);
    if random.one_in(3) && !shared.has_stopped() {
        count(Counter::Execs);
        exec_idle(assignment.run);
    }
    0
}

/// Executes this program again, as a process that exits soon.
fn exec_idle(run: u32) {
    use std::os::unix::process::CommandExt;
    let error = std::process::Command::new("/proc/self/exe").args(["idle", &run_tag(run)]).exec();
    violation(Guarantee::Interface, format_args!("exec failed: {error}"));
}

fn blocks(assignment: &Assignment, settings: &Settings, random: &mut Rng, end: Instant) {
    let shared = shared::get();
    let before = HeldObjects::now(assignment.run);
    let worker = match Worker::new(assignment, settings, random) {
        Ok(worker) => worker,
        Err(error) => return violation(Guarantee::Interface, format_args!("a worker cannot begin: {error}")),
    };
    work(&worker, random, end);
    let state = &shared.workers[assignment.identity.index];
    // From here on, other workers must not expect a live producer.
    state.ending.store(assignment.identity.incarnation, Ordering::SeqCst);
    drop(worker);
    state.tick(0, Activity::EndOfWorker);
    // Other workers may still have freed blocks open. This worker waits only for a short time.
    for _ in 0..20 {
        state.tick(0, Activity::EndOfWorker);
        if deferred::drain(Duration::from_millis(10)).is_empty() {
            break;
        }
    }
    if deferred::drain(Duration::ZERO).is_empty() {
        before.compare(assignment, state);
    } else {
        count(Counter::CensusSkipped);
    }
    state.tick(0, Activity::Ended);
}

/// Runs the threads of a worker.
fn work(worker: &Worker<'_>, random: &mut Rng, end: Instant) {
    let (producers, importers) = (1 + random.below(3), 1 + random.below(3));
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::thread::scope(|scope| {
            for _ in 0..producers {
                let thread = worker.thread(random.next_u64());
                scope.spawn(move || producer::run(thread, end));
            }
            for _ in 0..importers {
                let (thread, sender) = (worker.thread(random.next_u64()), sender.clone());
                scope.spawn(move || importer::run(thread, end, &sender));
            }
            drop(sender);
            let thread = worker.thread(random.next_u64());
            let receiver = &receiver;
            scope.spawn(move || {
                let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                importer::close_elsewhere(thread, &receiver);
            });
            if worker.settings.evict_ms > 0 {
                let thread = worker.thread(random.next_u64());
                scope.spawn(move || importer::evict_periodically(thread, end));
            }
        });
    }));
    if outcome.is_err() {
        violation(Guarantee::NoCrash, "a thread of a worker panicked");
    }
}

/// Maximum number of dropped exporters whose objects a process keeps. An exporter with open memory
/// in importers keeps its ledger, its lease table and the pidfds of its importers, until a later
/// exporter is dropped in the same state.
const KEPT_EXPORTERS: usize = 4;

/// The objects of umf that a process holds: fds, mappings, sockets, names.
#[derive(Debug, PartialEq, Eq)]
struct HeldObjects {
    fds: BTreeMap<String, usize>,
    mappings: BTreeMap<String, usize>,
    sockets: Vec<String>,
    names: Vec<String>,
}

impl HeldObjects {
    fn now(run: u32) -> Self {
        let pid = own_pid();
        let census = ProcessSnapshot::of_pid(pid);
        let is_of_umf = |file: &String| file.contains("memfd:umf") || file == "pidfd" || file == "socket";
        let prefix = format!("{}{pid}-", name_prefix(run));
        let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        Self {
            fds: census.fds.into_iter().filter(|(file, _)| is_of_umf(file)).collect(),
            mappings: census.mappings.into_iter().filter(|(file, _)| is_of_umf(file)).collect(),
            sockets: census.sockets,
            names: names.filter(|name| name.starts_with(&prefix)).collect(),
        }
    }

    /// Returns these objects without those that dropped exporters may keep.
    fn without_kept_exporters(&self) -> Self {
        let ledger = "/memfd:umf-ledger (deleted)";
        let table = "/memfd:umf-leases (deleted)";
        let mut fds = self.fds.clone();
        let mut mappings = self.mappings.clone();
        let kept = fds.get(table).copied().unwrap_or(0);
        if (1..=KEPT_EXPORTERS).contains(&kept) && fds.get(ledger) == Some(&kept) {
            for name in [ledger, table, "pidfd"] {
                fds.remove(name);
                mappings.remove(name);
            }
        }
        Self { fds, mappings, sockets: self.sockets.clone(), names: self.names.clone() }
    }

    /// Reports a difference between these objects and those that the process holds now. Waits for
    /// the connections of peers, which close with a delay.
    fn compare(&self, assignment: &Assignment, state: &shared::WorkerState) {
        let mut now = Self::now(assignment.run);
        for _ in 0..100 {
            if now.without_kept_exporters() == *self {
                return count(Counter::CensusTaken);
            }
            state.tick(0, Activity::EndOfWorker);
            std::thread::sleep(Duration::from_millis(10));
            now = Self::now(assignment.run);
        }
        violation(
            Guarantee::NothingLeft,
            format_args!("a worker began with {self:?} and ended with {now:?}"),
        );
    }
}
