//! Commands for leases: many at a time, in other threads and in children; corruption of lease
//! tables.

use std::collections::HashSet;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umf::host::HostProvider;
use umf::{Access, Mapping, Visibility};
use umf_core::Layout;
use umf_runtime::Upstream;

use crate::memory::{self, ActorState, decode};
use crate::process::wait_for;
use crate::stress::next;
use crate::{Answer, Failure};

pub(crate) fn execute(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("close-elsewhere", [name]) => close_elsewhere(actor, name),
        ("open-threads", [count, handle, "->", name]) => open_threads(actor, count, handle, name),
        ("reused", [pool, size, address, count]) => reused(actor, pool, size, address, count),
        ("regions", [count, size, "->", name]) => regions(actor, count, size, name),
        ("free-regions", [name, first, end]) => free_regions(actor, name, first, end),
        ("regions-again", [count, size]) => regions_again(actor, count, size),
        ("close-some", [name, first, end]) => close_some(actor, name, first, end),
        ("handles-into", [control, name, count]) => handles_into(actor, control, name, count),
        ("open-from", [control, first, end, "->", name]) => open_from(actor, control, first, end, name),
        ("fork-importers", [count, handle]) => fork_importers(actor, count, handle),
        ("kill-importers", []) => kill_importers(actor),
        ("scribble-leases", [pid, part, milliseconds, pids @ ..]) => scribble(pid, part, milliseconds, pids),
        ("claim-rows", [pid, lock]) => claim_rows(actor, pid, lock),
        ("empty-leases", [pid]) => empty(pid),
        _ => return None,
    })
}

fn open(handle: &[u8]) -> Result<Mapping<'static>, Failure> {
    Ok(umf::importer()?.open_bytes(handle, Access::ReadWrite)?)
}

/// Closes a mapping in a new thread.
fn close_elsewhere(actor: &mut ActorState, name: &str) -> Answer {
    let mapping = actor.mappings.remove(name).ok_or_else(|| Failure::unknown(name))?;
    let closed = std::thread::spawn(move || drop(mapping)).join();
    closed.map(|()| String::new()).map_err(|_| Failure::new("Panic", "in a thread"))
}

/// Opens a handle in `count` threads that live at the same time. Names the mappings `name0`,
/// `name1`, ...
fn open_threads(actor: &mut ActorState, count: &str, handle: &str, name: &str) -> Answer {
    let (count, bytes) = (count.parse()?, decode(handle)?);
    let all_opened = std::sync::Barrier::new(count);
    let opened: Vec<_> = std::thread::scope(|scope| {
        let run = || {
            let mapping = open(&bytes);
            all_opened.wait();
            mapping
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, mapping) in opened.into_iter().enumerate() {
        actor.mappings.insert(format!("{name}{number}"), mapping?);
    }
    Ok(String::new())
}

/// Allocates up to `count` blocks of this size, and answers whether one is at this address. Frees
/// the blocks.
fn reused(actor: &ActorState, pool: &str, size: &str, address: &str, count: &str) -> Answer {
    let (pool, size, count) = (actor.pool(pool)?, size.parse()?, count.parse()?);
    let mut blocks = Vec::new();
    for _ in 0..count {
        let block = pool.allocate(size)?;
        let found = block.address().to_string() == address;
        blocks.push(block);
        if found {
            return Ok("yes".to_owned());
        }
    }
    Ok("no".to_owned())
}

/// Allocates `count` regions of a new provider: `name0`, `name1`, ...
fn regions(actor: &mut ActorState, count: &str, size: &str, name: &str) -> Answer {
    let provider = HostProvider::builder().visibility(Visibility::Shared).build()?;
    let upstream = Arc::new(Upstream::new(provider)?);
    let layout = Layout::new(size.parse()?, 4096)?;
    for number in 0..count.parse::<usize>()? {
        let (region, _) = upstream.allocate(layout)?;
        actor.regions.insert(format!("{name}{number}"), (Arc::clone(&upstream), region));
    }
    Ok(String::new())
}

/// Frees regions `first` to `end`, and records their addresses for [`regions_again`].
fn free_regions(actor: &mut ActorState, name: &str, first: &str, end: &str) -> Answer {
    for number in first.parse::<usize>()?..end.parse()? {
        let name = format!("{name}{number}");
        let (upstream, region) = actor.regions.remove(&name).ok_or_else(|| Failure::unknown(&name))?;
        // SAFETY: the actor's own region; nothing borrows from it.
        unsafe { upstream.free(region) }?;
        let (provider, addresses) =
            actor.freed.get_or_insert_with(|| (Arc::clone(&upstream), HashSet::new()));
        *provider = upstream;
        addresses.insert(region.base());
    }
    Ok(String::new())
}

/// Allocates `count` regions of the same provider, and answers how many are at the address of a
/// freed region. Frees the regions.
fn regions_again(actor: &ActorState, count: &str, size: &str) -> Answer {
    let (upstream, addresses) = actor.freed.as_ref().ok_or_else(|| Failure::unknown("freed"))?;
    let layout = Layout::new(size.parse()?, 4096)?;
    let regions: Vec<_> =
        (0..count.parse()?).map(|_: u32| upstream.allocate(layout)).collect::<Result<_, _>>()?;
    let reused = regions.iter().filter(|(region, _)| addresses.contains(&region.base())).count();
    for (region, _) in regions {
        // SAFETY: allocated above.
        unsafe { upstream.free(region) }?;
    }
    Ok(reused.to_string())
}

/// Closes mappings `first` to `end` of `name0`, `name1`, ...
fn close_some(actor: &mut ActorState, name: &str, first: &str, end: &str) -> Answer {
    for number in first.parse::<usize>()?..end.parse()? {
        let name = format!("{name}{number}");
        actor.mappings.remove(&name).ok_or_else(|| Failure::unknown(&name))?;
    }
    Ok(String::new())
}

const HANDLE: usize = 256;

/// Writes the handles of `name0`, `name1`, ... into a block.
fn handles_into(actor: &ActorState, control: &str, name: &str, count: &str) -> Answer {
    let count: usize = count.parse()?;
    let mut bytes = Vec::with_capacity(count * HANDLE);
    for number in 0..count {
        let name = format!("{name}{number}");
        let (_, region) = actor.regions.get(&name).ok_or_else(|| Failure::unknown(&name))?;
        bytes.extend_from_slice(memory::handle(region.base())?.as_bytes());
    }
    let control = actor.block(control)?;
    assert!(bytes.len() <= control.size);
    // SAFETY: a live block of shared memory that is long enough.
    unsafe { umf::View::new(control.address.as_ptr().unwrap(), control.size) }?.copy_from(&bytes);
    Ok(String::new())
}

/// Opens the handles `first` to `end` in a mapping, as `name0`, `name1`, ...
fn open_from(actor: &mut ActorState, control: &str, first: &str, end: &str, name: &str) -> Answer {
    for number in first.parse::<usize>()?..end.parse()? {
        let mut bytes = [0; HANDLE];
        actor.mapping(control)?.read(number * HANDLE, &mut bytes)?;
        actor.mappings.insert(format!("{name}{number}"), open(&bytes)?);
    }
    Ok(String::new())
}

/// Forks `count` children, each of which opens the handle and keeps it open until it is killed.
fn fork_importers(actor: &mut ActorState, count: &str, handle: &str) -> Answer {
    let bytes = decode(handle)?;
    let (mut answers, answer) = std::io::pipe()?;
    let count: usize = count.parse()?;
    for _ in 0..count {
        // SAFETY: umf and the allocator have fork handlers, so that the child can use both.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // The child must not outlive an actor that is killed.
            // SAFETY: numbers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let opened = open(&bytes);
            let _ = std::io::Write::write_all(&mut &answer, &[u8::from(opened.is_ok())]);
            loop {
                std::thread::park();
            }
        }
        if pid < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        actor.importers.push(pid);
    }
    drop(answer);
    let mut opened = vec![0; count];
    answers.read_exact(&mut opened)?;
    Ok(opened.iter().map(|&opened| usize::from(opened)).sum::<usize>().to_string())
}

/// Kills and reaps the children of [`fork_importers`].
fn kill_importers(actor: &mut ActorState) -> Answer {
    for pid in &actor.importers {
        // SAFETY: a child that was not reaped.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
    for pid in actor.importers.drain(..) {
        let status = wait_for(pid)?;
        if status != "9" {
            return Err(Failure::new("Child", format!("{pid} ended with {status}")));
        }
    }
    Ok(String::new())
}

/// Opens the lease table of a process through `/proc`.
fn table_of(pid: &str) -> Result<std::fs::File, Failure> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        if std::fs::read_link(&path).is_ok_and(|link| link.to_string_lossy().contains("memfd:umf-leases")) {
            return Ok(std::fs::File::options().read(true).write(true).open(path)?);
        }
    }
    Err(Failure::unknown("lease table"))
}

/// Layout of a lease table: offsets of its parts, size and number of its rows (`docs/leases.md`).
struct TableLayout {
    owners: u64,
    bitmaps: u64,
    rows: u64,
    row_size: u64,
    count: u64,
}

impl TableLayout {
    const PART: u64 = 65536;

    fn of(table: &std::fs::File) -> Result<Self, Failure> {
        let word = |offset| -> Result<u64, Failure> {
            let mut bytes = [0; 4];
            table.read_exact_at(&mut bytes, offset)?;
            Ok(u64::from(u32::from_le_bytes(bytes)))
        };
        let (count, slots) = (word(12)?, word(32)?);
        let bitmaps = Self::PART + (count * 64).next_multiple_of(Self::PART);
        let words = (slots * 8).next_multiple_of(Self::PART);
        Ok(Self { owners: Self::PART, bitmaps, rows: bitmaps + words, row_size: Self::PART + words, count })
    }

    /// Returns the offset of the words of a row.
    const fn words(&self, row: u64) -> u64 {
        self.rows + row * self.row_size + Self::PART
    }
}

/// Writes plausible and random words to a lease table for the given time. If `part` is `body`, it
/// does not write the header words that identify the table. Answers with the number of words.
fn scribble(pid: &str, part: &str, milliseconds: &str, pids: &[&str]) -> Answer {
    let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
    let pids: Vec<u64> = pids.iter().map(|pid| pid.parse()).collect::<Result<_, _>>()?;
    let table = table_of(pid)?;
    let layout = TableLayout::of(&table)?;
    let mut state = u64::from(std::process::id());
    let mut words = 0;
    while Instant::now() < end {
        // The lowest rows and slots are used first, so that only a few hundred are in use.
        let (row, slot) = (next(&mut state) % layout.count.min(200), next(&mut state) % 300);
        let offset = match next(&mut state) % 8 {
            // The header words height, search, events, dead, cleared.
            0 if part == "body" => 64 + next(&mut state) % 5 * 64,
            0 => next(&mut state) % 5 * 8,
            1..=2 => layout.owners + row * 64 + next(&mut state) % 3 * 8,
            3..=4 => layout.bitmaps + slot * 8,
            _ => layout.words(row) + slot * 8,
        };
        let wild = next(&mut state);
        let value = match wild % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => wild % 5,
            3 => pids.get((wild >> 4) as usize % 8).copied().unwrap_or(wild >> 12),
            4 => 1 << ((wild >> 3) % 64),
            _ => wild << 20,
        };
        table.write_all_at(&value.to_le_bytes(), offset)?;
        words += 1;
    }
    Ok(words.to_string())
}

/// Counts every block as open in all rows of a lease table, and raises the table's height to all
/// rows. If `lock` is `lock`, also takes the locks of the rows.
fn claim_rows(actor: &mut ActorState, pid: &str, lock: &str) -> Answer {
    let table = table_of(pid)?;
    let layout = TableLayout::of(&table)?;
    table.write_all_at(&4096_u32.to_le_bytes(), 64)?;
    table.write_all_at(&u64::MAX.to_le_bytes().repeat(64), layout.bitmaps)?;
    // The first rows belong to another importer.
    for row in 8..layout.count.min(1000) {
        table.write_all_at(&7_u64.to_le_bytes(), layout.owners + row * 64)?;
        table.write_all_at(&1_u64.to_le_bytes().repeat(64), layout.words(row))?;
    }
    if lock == "lock" {
        let mut rows = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: layout.words(8).cast_signed() - TableLayout::PART.cast_signed(),
            l_len: 0,
            l_pid: 0,
        };
        // SAFETY: `rows` is valid during the call.
        if unsafe { libc::fcntl(table.as_raw_fd(), libc::F_OFD_SETLK, &raw mut rows) } < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        actor.locked.push(table);
    }
    Ok(String::new())
}

/// Clears a lease table except its header.
fn empty(pid: &str) -> Answer {
    let table = table_of(pid)?;
    let layout = TableLayout::of(&table)?;
    let size = layout.words(layout.count.min(64)) - layout.owners;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: numbers only.
    let punched =
        unsafe { libc::fallocate(table.as_raw_fd(), mode, layout.owners.cast_signed(), size.cast_signed()) };
    if punched < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(String::new()) }
}
