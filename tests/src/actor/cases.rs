//! Commands that a single test needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use umf::host::HostImport;
use umf::{Access, Pool};

use crate::file_driver::{self, FileDriver};
use crate::memory::{ActorState, RawBlock, decode};
use crate::{Answer, Failure};

pub(crate) fn execute(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("driver-pool", [name, kind, fds]) => driver_pool(actor, name, kind, fds),
        ("native-counts", []) => file_driver::counts(),
        ("alloc-aligned", [pool, size, align, "->", name]) => alloc_aligned(actor, pool, size, align, name),
        ("purge-region", [name]) => purge(actor, name),
        ("read-at", [name, offset, length]) => read_at(actor, name, offset, length),
        ("try-storm", [handle, milliseconds]) => try_storm(handle, milliseconds),
        ("touch", [name, milliseconds]) => touch(actor, name, milliseconds),
        ("mapped-at", [name]) => actor.mapping(name).map(|mapping| mapping.address().to_string()),
        ("open-file", [path, "->", name]) => open_file(actor, path, name),
        ("allow-unsealed", []) => umf::importer().map_err(Failure::from).map(|importer| {
            importer.add_import(Arc::new(HostImport::new().allow_unsealed(true)));
            String::new()
        }),
        ("ze-soft", [counter]) => ze_soft(counter),
        ("fixed-addresses", []) => fixed_addresses(),
        ("fork-while-exporters-end", [rounds]) => fork_while_exporters_end(rounds),
        _ => return None,
    })
}

/// Creates a pool whose blocks each have a native export. `fds` is `fd-each` (each export has an
/// fd) or `one-fd`.
fn driver_pool(actor: &mut ActorState, name: &str, kind: &str, fds: &str) -> Answer {
    let pool = umf::pools::ProxyPool::new(FileDriver::new(kind, fds == "fd-each")?)?;
    actor.pools.insert(name.to_owned(), Pool::from_pool(pool));
    Ok(String::new())
}

fn alloc_aligned(actor: &mut ActorState, pool: &str, size: &str, align: &str, name: &str) -> Answer {
    let pool = actor.pool(pool)?;
    let address = pool.allocate_aligned(size.parse()?, align.parse()?)?.into_address();
    let size = pool.as_core().block_at(address)?.size;
    actor.blocks.insert(name.to_owned(), RawBlock { address, size });
    Ok(address.to_string())
}

fn purge(actor: &mut ActorState, name: &str) -> Answer {
    let (upstream, region) = actor.regions.get(name).ok_or_else(|| Failure::unknown(name))?;
    let ability = upstream.provider().purge().ok_or_else(|| Failure::unknown("purge"))?;
    // SAFETY: the actor's own region, whose content may be lost.
    unsafe { ability.purge_forced(region.base(), region.size()) }?;
    Ok(String::new())
}

/// Returns bytes of a mapping, in hexadecimal.
fn read_at(actor: &ActorState, name: &str, offset: &str, length: &str) -> Answer {
    let mut bytes = vec![0; length.parse()?];
    actor.mapping(name)?.read(offset.parse()?, &mut bytes)?;
    Ok(umf_tests::forge::hex(&bytes))
}

/// Opens a handle repeatedly for the given time, and reads the whole block after each success.
fn try_storm(handle: &str, milliseconds: &str) -> Answer {
    let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
    let bytes = decode(handle)?;
    let importer = umf::importer()?;
    let (mut opened, mut refused) = (0_u64, 0_u64);
    let mut content = vec![0; 1 << 20];
    while Instant::now() < end {
        match importer.open_bytes(&bytes, Access::ReadOnly) {
            Ok(mapping) => {
                let length = mapping.len().min(content.len());
                mapping.read(0, &mut content[..length])?;
                mapping.read(mapping.len() - 1, &mut content[..1])?;
                opened += 1;
            }
            Err(_) => refused += 1,
        }
        if (opened + refused).is_multiple_of(8) {
            importer.evict_idle();
        }
    }
    Ok(format!("opened={opened} refused={refused}"))
}

/// Reads and writes a mapping in two threads for the given time. Answers with the number of rounds.
fn touch(actor: &ActorState, name: &str, milliseconds: &str) -> Answer {
    let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
    let mapping = actor.mapping(name)?;
    let run = |byte: u8| -> Result<u64, Failure> {
        let mut bytes = vec![0; mapping.len()];
        let mut rounds = 0;
        while Instant::now() < end {
            mapping.read(0, &mut bytes)?;
            mapping.write(0, &[byte])?;
            mapping.write(mapping.len() - 1, &[byte])?;
            rounds += 1;
        }
        Ok(rounds)
    };
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        (run(2), other.join())
    });
    let second = second.map_err(|_| Failure::new("Panic", "in a thread"))?;
    Ok((first? + second?).to_string())
}

/// Opens the handle whose bytes a file holds.
fn open_file(actor: &mut ActorState, path: &str, name: &str) -> Answer {
    let mapping = umf::importer()?.open_bytes(&std::fs::read(path)?, Access::ReadWrite)?;
    actor.mappings.insert(name.to_owned(), mapping);
    Ok(String::new())
}

/// Returns a counter of the software driver, which must be loaded.
fn ze_soft(counter: &str) -> Answer {
    type Query = unsafe extern "C" fn(*const libc::c_char, *mut u64) -> u32;
    let path = std::env::var_os("TESTS_ZE_SOFT").ok_or_else(|| Failure::unknown("TESTS_ZE_SOFT"))?;
    let path = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(&*path)).unwrap();
    let counter = std::ffi::CString::new(counter).unwrap();
    // SAFETY: `RTLD_NOLOAD` runs no code of the library.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return Err(Failure::new("NotStarted", "the software driver"));
    }
    // SAFETY: only the address of the function is looked up.
    let query = unsafe { libc::dlsym(library, c"zeSoftQuery".as_ptr()) };
    assert!(!query.is_null());
    let mut value = 0;
    // SAFETY: the function has this prototype.
    let answer =
        unsafe { std::mem::transmute::<*mut libc::c_void, Query>(query)(counter.as_ptr(), &raw mut value) };
    if answer == 0 { Ok(value.to_string()) } else { Err(Failure::unknown(counter.to_str().unwrap_or("?"))) }
}

/// Disables address randomization from the next `exec` on.
fn fixed_addresses() -> Answer {
    // SAFETY: numbers only.
    let now = unsafe { libc::personality(0xFFFF_FFFF) };
    // SAFETY: numbers only.
    let set = unsafe { libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) };
    if now < 0 || set < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(String::new()) }
}

/// Creates and drops exporters with a socket in one thread while another thread forks. Answers with
/// the number of children that inherited a socket, and of all children.
fn fork_while_exporters_end(rounds: &str) -> Answer {
    let pool = Pool::shared()?;
    let block = pool.allocate(64)?;
    let address = block.address();
    let done = AtomicBool::new(false);
    let mut with_socket = 0;
    let mut children = 0;
    std::thread::scope(|scope| {
        let exporters = scope.spawn(|| -> Result<(), Failure> {
            while !done.load(Ordering::Relaxed) {
                let mut settings = umf::ipc::ExporterSettings::default();
                settings.exchange = umf::Exchange::Order(vec![umf::Mode::Socket]);
                let exporter = umf::Exporter::new(settings)?;
                // SAFETY: no thread accesses the memory.
                drop(unsafe { exporter.get(address) }?);
            }
            Ok(())
        });
        for _ in 0..rounds.parse::<u32>()? {
            // SAFETY: the child makes only system calls, and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: numbers only; `has_socket` makes only system calls.
                unsafe { libc::_exit(i32::from(has_socket())) };
            }
            if pid < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            children += 1;
            with_socket += u32::from(crate::process::wait_for(pid)? != "0");
        }
        done.store(true, Ordering::Relaxed);
        exporters.join().unwrap_or_else(|_| Err(Failure::new("Panic", "in a thread")))
    })?;
    Ok(format!("with_socket={with_socket} children={children}"))
}

/// Returns whether this process has an open socket.
fn has_socket() -> bool {
    (3..64).any(|number| {
        // SAFETY: zeroes are a value of this plain structure.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `status` is valid for the write; any fd number may be passed.
        let is_open = unsafe { libc::fstat(number, &raw mut status) } == 0;
        is_open && status.st_mode & libc::S_IFMT == libc::S_IFSOCK
    })
}
