//! Importer threads. They open published handles, check open mappings repeatedly, pass mappings to
//! other threads, evict, fork, and check whether each error of an open is justified.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use umf::ipc::{Error, Handle};
use umf::{Access, Importer, Mapping, Mode};
use umf_tests::Rng;

use crate::checker::{Guarantee, violation, violation_for_handle};
use crate::child::Children;
use crate::content::{self, Comparison, Zeros};
use crate::shared::{Activity, BlockState, Counter, Identity, Publication, count};
use crate::worker::{OnlyMode, Thread, Worker, new_importer, random_mode};

/// Maximum number of mappings that wait in the closing thread.
const MAX_WAITING: usize = 20;

/// An open block. Its record is removed after the mapping is closed.
pub struct OpenBlock<'w> {
    mapping: Mapping<'w>,
    publication: Publication,
    opened_by: String,
    since: Instant,
    _record: OpenRecord,
}

/// A record in shared memory that this worker may have a block open.
struct OpenRecord {
    worker: Identity,
    id: u64,
    process: u32,
}

impl OpenRecord {
    fn new(worker: &Worker<'_>, id: u64) -> Self {
        worker.shared.add_open(worker.identity, id);
        Self { worker: worker.identity, id, process: std::process::id() }
    }
}

impl Drop for OpenRecord {
    fn drop(&mut self) {
        // A forked child has copies of its parent's records.
        if self.process == std::process::id() {
            crate::shared::get().remove_open(self.worker, self.id);
        }
    }
}

/// Runs an importer thread until `end`.
pub fn run<'w>(mut thread: Thread<'w>, end: Instant, elsewhere: &Sender<OpenBlock<'w>>) {
    let mut open: Vec<OpenBlock<'w>> = Vec::new();
    let most = 1 + thread.random.below(60) as usize;
    let mut children = Children::new();
    while thread.is_running(end) {
        count(Counter::Rounds);
        let chosen = thread.random.below(open.len().max(1) as u64) as usize;
        match thread.random.below(100) {
            0..55 => {
                if let Some(opened) = open_published(&mut thread) {
                    check(&opened, "opened");
                    if open.len() < most {
                        open.push(opened);
                    } else {
                        let replaced = thread.random.below(most as u64) as usize;
                        open[replaced] = opened;
                    }
                }
            }
            55..75 if !open.is_empty() => {
                thread.tick(Activity::Check);
                check(&open[chosen], "kept open");
            }
            75..85 if !open.is_empty() => {
                thread.tick(Activity::Close);
                let closed = open.swap_remove(chosen);
                check(&closed, "about to be closed");
                if thread.random.one_in(3) {
                    // If the closing thread has ended, this thread closes the mapping.
                    let _ = elsewhere.send(closed);
                }
            }
            85..87 => evict(&mut thread),
            87 if thread.worker.settings.forks && thread.random.one_in(4) => {
                thread.tick(Activity::Fork);
                children.fork(&mut thread, &mut open);
            }
            88..90 => short_lived_importer(&mut thread, &open),
            90 => short_lived_thread(&mut thread, elsewhere),
            _ => {
                thread.tick(Activity::Pause);
                thread.pause(Duration::from_micros(400));
            }
        }
        children.reap();
    }
    for opened in &open {
        thread.tick(Activity::Check);
        check(opened, "at the end");
    }
    drop(open);
    children.wait(&thread);
}

/// Runs the closing thread: closes mappings that other threads opened, some of them with a delay.
pub fn close_elsewhere(mut thread: Thread<'_>, mappings: &Receiver<OpenBlock<'_>>) {
    let mut kept: Vec<OpenBlock<'_>> = Vec::new();
    loop {
        thread.tick(Activity::Close);
        match mappings.recv_timeout(Duration::from_millis(20)) {
            Ok(opened) => kept.push(opened),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !kept.is_empty() && (kept.len() > MAX_WAITING || thread.random.one_in(8)) {
            let closed = kept.swap_remove(thread.random.below(kept.len() as u64) as usize);
            check(&closed, "handed to another thread");
            count(Counter::ClosedElsewhere);
        }
    }
    for closed in &kept {
        check(closed, "handed to another thread");
    }
}

/// Evicts idle mappings of all importers periodically until `end`.
pub fn evict_periodically(thread: Thread<'_>, end: Instant) {
    while thread.is_running(end) {
        thread.tick(Activity::Evict);
        for own in &thread.worker.importers {
            own.importer.evict_idle();
            count(Counter::Evictions);
        }
        std::thread::sleep(Duration::from_millis(thread.worker.settings.evict_ms));
    }
}

fn evict(thread: &mut Thread<'_>) {
    thread.tick(Activity::Evict);
    let importers = &thread.worker.importers;
    importers[thread.random.below(importers.len() as u64) as usize].importer.evict_idle();
    count(Counter::Evictions);
}

/// Chooses a published handle. Returns `None` if this worker should not open it.
fn choose(thread: &mut Thread<'_>) -> Option<Publication> {
    let publication = thread.worker.shared.publication(thread.random.next_u64())?;
    let worker = thread.worker;
    // Most published blocks were freed meanwhile. Only some of these are opened.
    if worker.shared.state(publication.id) == Some(BlockState::Freed) && !thread.random.one_in(6) {
        return None;
    }
    let other_user = worker.user != publication.flags.user;
    if publication.flags.device && (other_user || worker.namespace || publication.flags.namespace) {
        return None;
    }
    // Opens of another user's handle must fail. A few are tried.
    (!worker.user || publication.flags.user || thread.random.one_in(16)).then_some(publication)
}

/// Opens a published handle with one of the worker's importers.
pub fn open_published<'w>(thread: &mut Thread<'w>) -> Option<OpenBlock<'w>> {
    let publication = choose(thread)?;
    let importers = &thread.worker.importers;
    let chosen = &importers[thread.random.below(importers.len() as u64) as usize];
    thread.tick(Activity::Open);
    let opened = open(thread.worker, &chosen.importer, chosen.only, &publication, &mut thread.random);
    thread.tick(Activity::Check);
    opened
}

/// Opens a handle, and checks the result against the recorded state of the block.
fn open<'i>(
    worker: &Worker<'_>,
    importer: &'i Importer,
    only: OnlyMode,
    publication: &Publication,
    random: &mut Rng,
) -> Option<OpenBlock<'i>> {
    let read_only = random.one_in(3) || publication.flags.read_only && !random.one_in(4);
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let record = OpenRecord::new(worker, publication.id);
    let was_freed = worker.shared.state(publication.id) == Some(BlockState::Freed);
    let was_alive = worker.shared.is_alive(publication.producer);
    let outcome = importer.open_bytes(&publication.handle, access);
    let mapping = match outcome {
        Ok(mapping) => mapping,
        Err(error) => {
            check_error(worker, only, publication, was_alive, &error);
            return None;
        }
    };
    count(Counter::Opens);
    if was_freed {
        violation_for_handle(
            Guarantee::StaleOpen,
            publication.handle(),
            format_args!(
                "block {} was freed before it was opened, current {}",
                publication.id,
                mapping.is_current()
            ),
        );
    }
    if worker.user && !publication.flags.user {
        let what = format_args!("a handle of another user was opened for {access:?}");
        violation_for_handle(Guarantee::OtherUser, publication.handle(), what);
    }
    static THREADS: AtomicU32 = AtomicU32::new(0);
    thread_local! { static NUMBER: u32 = THREADS.fetch_add(1, Ordering::Relaxed); }
    let opened_by = format!("thread number {} by importer {importer:p}", NUMBER.with(|number| *number));
    Some(OpenBlock { mapping, publication: *publication, opened_by, since: Instant::now(), _record: record })
}

/// Reports an error of an open that the state of the producer and of this worker does not justify.
fn check_error(
    worker: &Worker<'_>,
    only: OnlyMode,
    publication: &Publication,
    was_alive: bool,
    error: &Error,
) {
    let flags = publication.flags;
    let is_alive = was_alive && worker.shared.is_alive(publication.producer);
    let is_live =
        is_alive && worker.shared.state(publication.id) == Some(BlockState::Live) && !flags.evictable;
    let refused = |guarantee| {
        let what = format!("block {} of a live producer is refused: {error}", publication.id);
        violation_for_handle(guarantee, publication.handle(), what);
    };
    count(match error {
        Error::Stale { .. } => Counter::Stale,
        Error::ProducerGone { .. } => Counter::ProducerGone,
        Error::NotPermitted { .. } if worker.user && !flags.user => Counter::OtherUser,
        _ => Counter::OtherRefusals,
    });
    match error {
        Error::Stale { .. } | Error::OtherObject { .. } if is_live => refused(Guarantee::LiveBlock),
        Error::ProducerGone { .. } | Error::ProducerReplaced { .. } if is_alive && !flags.evictable => {
            refused(Guarantee::LiveBlock);
        }
        Error::NotPermitted { .. } if is_alive => {
            let socket = flags.served && only.is_none_or(|mode| mode == Mode::Socket);
            let elsewhere = worker.namespace || flags.namespace;
            // Even root does not trust the socket of another user's producer.
            let by_socket = only == Some(Mode::Socket) || elsewhere;
            let foreign = worker.user && !flags.user || worker.user != flags.user && by_socket;
            // Memory that is shared with devices cannot be opened through /proc.
            let no_mode = only == Some(Mode::Socket) || flags.device && only == Some(Mode::Procfs);
            let is_justified = foreign || !socket && (elsewhere || no_mode);
            if !is_justified {
                refused(Guarantee::LiveBlock);
            }
        }
        Error::ReadOnly if !flags.read_only => refused(Guarantee::Interface),
        Error::Misbehaved { .. } if !flags.evictable => refused(Guarantee::Interface),
        Error::Stale { .. }
        | Error::OtherObject { .. }
        | Error::ProducerGone { .. }
        | Error::ProducerReplaced { .. }
        | Error::NotPermitted { .. }
        | Error::ReadOnly
        | Error::Misbehaved { .. }
        | Error::LimitReached { .. }
        | Error::TimedOut { .. }
        | Error::Memory(_)
        | Error::System { .. } => {}
        _ => refused(Guarantee::Interface),
    }
}

/// Checks the content of an open block, and whether its mapping is current.
pub fn check(open: &OpenBlock<'_>, when: &str) {
    count(Counter::Checks);
    let OpenBlock { mapping, publication, .. } = open;
    if (mapping.len() as u64) < publication.size {
        let what =
            format!("{when}: a mapping of {} bytes for a block of {}", mapping.len(), publication.size);
        return violation_for_handle(Guarantee::Interface, publication.handle(), what);
    }
    match read_current(mapping, publication) {
        Ok(Ok(_)) => {}
        Ok(Err(mismatch)) => report(Guarantee::CurrentContent, open, when, &describe(mismatch)),
        Err(Error::Stale { .. }) => check_stale(open, when),
        // A driver may lack memory.
        Err(Error::Memory(_)) if publication.flags.device => {}
        Err(error) => report(Guarantee::Interface, open, when, &error.to_string()),
    }
}

/// Compares the content of a mapping that is current before and after the read.
///
/// # Errors
/// [`Error::Stale`] if the mapping is not current.
pub fn read_current(mapping: &Mapping<'_>, publication: &Publication) -> Result<Comparison, Error> {
    if mapping.is_read_only() || !mapping.is_host_accessible() {
        let mut copied = vec![0; publication.size as usize];
        mapping.read_current(0, &mut copied)?;
        return Ok(content::compare_bytes(&copied, publication.id, false));
    }
    mapping.with(|memory| content::compare_memory(memory, publication.id, publication.size, false))
}

fn check_stale(open: &OpenBlock<'_>, when: &str) {
    count(Counter::ChecksAfterFree);
    let OpenBlock { mapping, publication, .. } = open;
    let shared = crate::shared::get();
    let live =
        shared.state(publication.id) == Some(BlockState::Live) && shared.is_alive(publication.producer);
    if live && !publication.flags.evictable {
        report(Guarantee::LiveBlock, open, when, "the mapping of a live block is not current");
    }
    let mut copied = vec![0; publication.size as usize];
    match mapping.read(0, &mut copied) {
        Ok(()) => match content::compare_bytes(&copied, publication.id, publication.flags.release) {
            Ok(Zeros(false)) => {}
            Ok(Zeros(true)) => count(Counter::Released),
            Err(mismatch) => report(Guarantee::HeldContent, open, when, &describe(mismatch)),
        },
        Err(Error::Memory(_)) if publication.flags.device => {}
        Err(error) => report(Guarantee::Interface, open, when, &error.to_string()),
    }
}

fn describe(mismatch: content::Mismatch) -> String {
    content::describe(mismatch, crate::shared::get().blocks_end())
}

fn report(guarantee: Guarantee, open: &OpenBlock<'_>, when: &str, what: &str) {
    let OpenBlock { mapping, publication, opened_by, since, .. } = open;
    let shared = crate::shared::get();
    let text = format!(
        "{when}: block {} of {} bytes, opened {} us ago in {opened_by}, {}: {what}\n  mapping at {} current {}, \
         producer worker {} incarnation {} ({}), block {:?}, published as {:?}",
        publication.id,
        publication.size,
        since.elapsed().as_micros(),
        if mapping.is_read_only() { "read-only" } else { "writable" },
        mapping.address(),
        mapping.is_current(),
        publication.producer.index,
        publication.producer.incarnation,
        if shared.is_alive(publication.producer) { "alive" } else { "gone" },
        shared.state(publication.id),
        publication.flags,
    );
    violation_for_handle(guarantee, publication.handle(), text);
}

/// Creates an importer and drops it after a few opens. Some of the opened blocks are also open in
/// another importer of this thread. Another thread closes all mappings while the importer is
/// dropped.
fn short_lived_importer(thread: &mut Thread<'_>, open_already: &[OpenBlock<'_>]) {
    thread.tick(Activity::DropImporter);
    let only = random_mode(&mut thread.random);
    let importer = match new_importer(thread.worker.settings, &mut thread.random, only) {
        Ok(importer) => importer,
        Err(error) => return violation(Guarantee::Interface, format_args!("another importer: {error}")),
    };
    let mut all = Vec::new();
    for _ in 0..thread.random.below(6) {
        let again = !open_already.is_empty() && !thread.random.one_in(3);
        let publication =
            if again { Some(thread.random.choose(open_already).publication) } else { choose(thread) };
        let Some(publication) = publication else { continue };
        thread.tick(Activity::DropImporter);
        if let Some(opened) = open(thread.worker, &importer, only, &publication, &mut thread.random) {
            check(&opened, "opened by an importer that is dropped soon");
            all.push(opened);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| drop(all));
    });
    drop(importer);
    count(Counter::ImportersDropped);
}

/// Runs a thread that ends after a few opens. It closes some of its mappings, and passes others to
/// the closing thread.
fn short_lived_thread<'w>(thread: &mut Thread<'w>, elsewhere: &Sender<OpenBlock<'w>>) {
    thread.tick(Activity::Open);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4 {
                let Some(opened) = open_published(thread) else { continue };
                check(&opened, "opened by a thread that ends soon");
                if thread.random.one_in(2) {
                    // If the closing thread has ended, this thread closes the mapping.
                    let _ = elsewhere.send(opened);
                }
            }
        });
    });
}

/// Opens a handle in a forked child, and checks the mapping.
pub fn open_in_child(thread: &mut Thread<'_>) {
    if let Some(opened) = open_published(thread) {
        check(&opened, "opened in a forked child");
    }
}

/// Checks a mapping that a forked child has inherited. The parent may close its mapping meanwhile,
/// after which the memory can be reused. The content is therefore checked only if the mapping is
/// current before and after the read.
pub fn check_inherited(open: &OpenBlock<'_>) {
    if let Ok(Err(mismatch)) = read_current(&open.mapping, &open.publication) {
        report(Guarantee::CurrentContent, open, "inherited by a forked child", &describe(mismatch));
    }
}

/// Opens a handle that this process exported.
///
/// # Errors
/// Errors other than `NotPermitted` and `LimitReached`, which the importer's settings can cause.
pub fn open_own_export(importer: &Importer, handle: &Handle) -> Result<(), Error> {
    match importer.open_read_only(handle) {
        Ok(_) | Err(Error::NotPermitted { .. } | Error::LimitReached { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
