//! Importer threads: they open published handles, check what they have open again and again, hand
//! mappings to other threads, evict, fork, and judge every refusal.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use umf::ipc::{Error, Handle};
use umf::{Access, Importer, Mapping, Mode};
use umf_tests::Rng;

use crate::checker::{Promise, broken, broken_for};
use crate::child::Children;
use crate::content::{self, Found, Zeros};
use crate::shared::{Activity, BlockState, Counter, Identity, Notice, count};
use crate::worker::{OnlyMode, Thread, Worker, new_importer, random_mode};

/// Mappings that wait in the closing thread at one time.
const KEPT_ELSEWHERE: usize = 20;

/// An open block. Its note is removed after the mapping is closed.
pub struct Open<'w> {
    mapping: Mapping<'w>,
    notice: Notice,
    opened_by: String,
    since: Instant,
    _note: OpenNote,
}

/// Says in shared memory that this worker may have a block open.
struct OpenNote {
    worker: Identity,
    id: u64,
    process: u32,
}

impl OpenNote {
    fn new(worker: &Worker<'_>, id: u64) -> Self {
        worker.shared.add_open(worker.identity, id);
        Self { worker: worker.identity, id, process: std::process::id() }
    }
}

impl Drop for OpenNote {
    fn drop(&mut self) {
        // A forked child has a copy of its parent's notes.
        if self.process == std::process::id() {
            crate::shared::get().remove_open(self.worker, self.id);
        }
    }
}

/// Works until the end of the worker's life.
pub fn run<'w>(mut thread: Thread<'w>, end: Instant, elsewhere: &Sender<Open<'w>>) {
    let mut open: Vec<Open<'w>> = Vec::new();
    let most = 1 + thread.random.below(60) as usize;
    let mut children = Children::new();
    while thread.goes_on(end) {
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
                    // If the closing thread has ended, this thread closes it.
                    let _ = elsewhere.send(closed);
                }
            }
            85..87 => evict(&mut thread),
            87 if thread.worker.settings.forks && thread.random.one_in(4) => {
                thread.tick(Activity::Fork);
                children.fork(&mut thread, &mut open);
            }
            88..90 => passing_importer(&mut thread, &open),
            90 => passing_thread(&mut thread, elsewhere),
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

/// Closes mappings that other threads opened, some of them late.
pub fn close_elsewhere(mut thread: Thread<'_>, mappings: &Receiver<Open<'_>>) {
    let mut kept: Vec<Open<'_>> = Vec::new();
    loop {
        thread.tick(Activity::Close);
        match mappings.recv_timeout(Duration::from_millis(20)) {
            Ok(opened) => kept.push(opened),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !kept.is_empty() && (kept.len() > KEPT_ELSEWHERE || thread.random.one_in(8)) {
            let closed = kept.swap_remove(thread.random.below(kept.len() as u64) as usize);
            check(&closed, "handed to another thread");
            count(Counter::ClosedElsewhere);
        }
    }
    for closed in &kept {
        check(closed, "handed to another thread");
    }
}

/// Evicts idle mappings of all importers, again and again.
pub fn evict_again_and_again(thread: Thread<'_>, end: Instant) {
    while thread.goes_on(end) {
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

/// A published handle that this worker may try to open.
fn choose(thread: &mut Thread<'_>) -> Option<Notice> {
    let notice = thread.worker.shared.notice(thread.random.next_u64())?;
    let worker = thread.worker;
    // Most notices are of blocks that were freed. Some of them are opened.
    if worker.shared.state(notice.id) == Some(BlockState::Freed) && !thread.random.one_in(6) {
        return None;
    }
    let other_user = worker.user != notice.flags.user;
    if notice.flags.device && (other_user || worker.namespace || notice.flags.namespace) {
        return None;
    }
    // Another user is refused. That is tried now and then.
    (!worker.user || notice.flags.user || thread.random.one_in(16)).then_some(notice)
}

/// Opens a published handle by one of the worker's importers.
pub fn open_published<'w>(thread: &mut Thread<'w>) -> Option<Open<'w>> {
    let notice = choose(thread)?;
    let importers = &thread.worker.importers;
    let chosen = &importers[thread.random.below(importers.len() as u64) as usize];
    thread.tick(Activity::Open);
    let opened = open(thread.worker, &chosen.importer, chosen.only, &notice, &mut thread.random);
    thread.tick(Activity::Check);
    opened
}

/// Opens a handle and judges the outcome by what the producer says about the block.
fn open<'i>(
    worker: &Worker<'_>,
    importer: &'i Importer,
    only: OnlyMode,
    notice: &Notice,
    random: &mut Rng,
) -> Option<Open<'i>> {
    let read_only = random.one_in(3) || notice.flags.read_only && !random.one_in(4);
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let note = OpenNote::new(worker, notice.id);
    let was_freed = worker.shared.state(notice.id) == Some(BlockState::Freed);
    let was_alive = worker.shared.is_alive(notice.producer);
    let outcome = importer.open_bytes(&notice.handle, access);
    let mapping = match outcome {
        Ok(mapping) => mapping,
        Err(error) => {
            judge(worker, only, notice, was_alive, &error);
            return None;
        }
    };
    count(Counter::Opens);
    if was_freed {
        broken_for(
            Promise::StaleOpen,
            notice.handle(),
            format_args!(
                "block {} was freed before it was opened, current {}",
                notice.id,
                mapping.is_current()
            ),
        );
    }
    if worker.user && !notice.flags.user {
        let what = format_args!("a handle of another user was opened for {access:?}");
        broken_for(Promise::OtherUser, notice.handle(), what);
    }
    static THREADS: AtomicU32 = AtomicU32::new(0);
    thread_local! { static NUMBER: u32 = THREADS.fetch_add(1, Ordering::Relaxed); }
    let opened_by = format!("thread number {} by importer {importer:p}", NUMBER.with(|number| *number));
    Some(Open { mapping, notice: *notice, opened_by, since: Instant::now(), _note: note })
}

/// Whether a refusal can be explained by what the producer and this worker have done.
fn judge(worker: &Worker<'_>, only: OnlyMode, notice: &Notice, was_alive: bool, error: &Error) {
    let flags = notice.flags;
    let is_alive = was_alive && worker.shared.is_alive(notice.producer);
    let is_live = is_alive && worker.shared.state(notice.id) == Some(BlockState::Live) && !flags.evictable;
    let refused = |promise| {
        let what = format!("block {} of a live producer is refused: {error}", notice.id);
        broken_for(promise, notice.handle(), what);
    };
    count(match error {
        Error::Stale { .. } => Counter::Stale,
        Error::ProducerGone { .. } => Counter::ProducerGone,
        Error::NotPermitted { .. } if worker.user && !flags.user => Counter::OtherUser,
        _ => Counter::OtherRefusals,
    });
    match error {
        Error::Stale { .. } | Error::OtherObject { .. } if is_live => refused(Promise::LiveBlock),
        Error::ProducerGone { .. } | Error::ProducerReplaced { .. } if is_alive && !flags.evictable => {
            refused(Promise::LiveBlock);
        }
        Error::NotPermitted { .. } if is_alive => {
            let socket = flags.served && only.is_none_or(|mode| mode == Mode::Socket);
            let elsewhere = worker.namespace || flags.namespace;
            // The socket of a producer of another user is not trusted, not even by root.
            let by_socket = only == Some(Mode::Socket) || elsewhere;
            let foreign = worker.user && !flags.user || worker.user != flags.user && by_socket;
            // Memory that devices share does not travel through /proc.
            let wrong_way = only == Some(Mode::Socket) || flags.device && only == Some(Mode::Procfs);
            let explained = foreign || !socket && (elsewhere || wrong_way);
            if !explained {
                refused(Promise::LiveBlock);
            }
        }
        Error::ReadOnly if !flags.read_only => refused(Promise::Interface),
        Error::Misbehaved { .. } if !flags.evictable => refused(Promise::Interface),
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
        _ => refused(Promise::Interface),
    }
}

/// Checks the content of an open block, and what the mapping says about it.
pub fn check(open: &Open<'_>, when: &str) {
    count(Counter::Checks);
    let Open { mapping, notice, .. } = open;
    if (mapping.len() as u64) < notice.size {
        let what = format!("{when}: a mapping of {} bytes for a block of {}", mapping.len(), notice.size);
        return broken_for(Promise::Interface, notice.handle(), what);
    }
    match read_current(mapping, notice) {
        Ok(Ok(_)) => {}
        Ok(Err(wrong)) => report(Promise::CurrentContent, open, when, &describe(wrong)),
        Err(Error::Stale { .. }) => check_stale(open, when),
        // A driver may refuse, as memory may be short.
        Err(Error::Memory(_)) if notice.flags.device => {}
        Err(error) => report(Promise::Interface, open, when, &error.to_string()),
    }
}

/// The content of a mapping, if it was current before and after it was read.
pub fn read_current(mapping: &Mapping<'_>, notice: &Notice) -> Result<Found, Error> {
    if mapping.is_read_only() || !mapping.is_host_accessible() {
        let mut copied = vec![0; notice.size as usize];
        mapping.read_current(0, &mut copied)?;
        return Ok(content::compare_bytes(&copied, notice.id, false));
    }
    mapping.with(|memory| content::compare_memory(memory, notice.id, notice.size, false))
}

fn check_stale(open: &Open<'_>, when: &str) {
    count(Counter::ChecksAfterFree);
    let Open { mapping, notice, .. } = open;
    let shared = crate::shared::get();
    let live = shared.state(notice.id) == Some(BlockState::Live) && shared.is_alive(notice.producer);
    if live && !notice.flags.evictable {
        report(Promise::LiveBlock, open, when, "the mapping of a live block is not current");
    }
    let mut copied = vec![0; notice.size as usize];
    match mapping.read(0, &mut copied) {
        Ok(()) => match content::compare_bytes(&copied, notice.id, notice.flags.release) {
            Ok(Zeros(false)) => {}
            Ok(Zeros(true)) => count(Counter::Released),
            Err(wrong) => report(Promise::HeldContent, open, when, &describe(wrong)),
        },
        Err(Error::Memory(_)) if notice.flags.device => {}
        Err(error) => report(Promise::Interface, open, when, &error.to_string()),
    }
}

fn describe(wrong: content::Wrong) -> String {
    content::describe(wrong, crate::shared::get().blocks_end())
}

fn report(promise: Promise, open: &Open<'_>, when: &str, what: &str) {
    let Open { mapping, notice, opened_by, since, .. } = open;
    let shared = crate::shared::get();
    let text = format!(
        "{when}: block {} of {} bytes, opened {} us ago in {opened_by}, {}: {what}\n  mapping at {} current {}, \
         producer worker {} incarnation {} ({}), block {:?}, published as {:?}",
        notice.id,
        notice.size,
        since.elapsed().as_micros(),
        if mapping.is_read_only() { "read-only" } else { "writable" },
        mapping.address(),
        mapping.is_current(),
        notice.producer.place,
        notice.producer.incarnation,
        if shared.is_alive(notice.producer) { "alive" } else { "gone" },
        shared.state(notice.id),
        notice.flags,
    );
    broken_for(promise, notice.handle(), text);
}

/// An importer that is dropped after a few opens. Some are of blocks that this thread has open by
/// another importer. All are closed in another thread, and the importer is dropped at once.
fn passing_importer(thread: &mut Thread<'_>, open_already: &[Open<'_>]) {
    thread.tick(Activity::DropImporter);
    let only = random_mode(&mut thread.random);
    let importer = match new_importer(thread.worker.settings, &mut thread.random, only) {
        Ok(importer) => importer,
        Err(error) => return broken(Promise::Interface, format_args!("another importer: {error}")),
    };
    let mut all = Vec::new();
    for _ in 0..thread.random.below(6) {
        let again = !open_already.is_empty() && !thread.random.one_in(3);
        let notice = if again { Some(thread.random.choose(open_already).notice) } else { choose(thread) };
        let Some(notice) = notice else { continue };
        thread.tick(Activity::DropImporter);
        if let Some(opened) = open(thread.worker, &importer, only, &notice, &mut thread.random) {
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

/// A thread that ends after a few opens. It closes some of its mappings, and leaves others to the
/// closing thread.
fn passing_thread<'w>(thread: &mut Thread<'w>, elsewhere: &Sender<Open<'w>>) {
    thread.tick(Activity::Open);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4 {
                let Some(opened) = open_published(thread) else { continue };
                check(&opened, "opened by a thread that ends soon");
                if thread.random.one_in(2) {
                    // If the closing thread has ended, this thread closes it.
                    let _ = elsewhere.send(opened);
                }
            }
        });
    });
}

/// Opens a handle in a forked child, and checks what it maps.
pub fn open_in_child(thread: &mut Thread<'_>) {
    if let Some(opened) = open_published(thread) {
        check(&opened, "opened in a forked child");
    }
}

/// Checks a mapping that a forked child has inherited. The parent may close it meanwhile, after
/// which its memory may be used again. So only memory that is current before and after it was read
/// counts.
pub fn check_inherited(open: &Open<'_>) {
    if let Ok(Err(wrong)) = read_current(&open.mapping, &open.notice) {
        report(Promise::CurrentContent, open, "inherited by a forked child", &describe(wrong));
    }
}

/// A handle that can be opened by the process that made it.
pub fn opens_own(importer: &Importer, handle: &Handle) -> Result<(), Error> {
    match importer.open_read_only(handle) {
        Ok(_) | Err(Error::NotPermitted { .. } | Error::LimitReached { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
