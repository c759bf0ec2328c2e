//! The role of a producer: serves blocks, and allocates and frees them when it is told to.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use umf_core::{Address, Layout, Pool, Visibility};
use umf_ipc::{Exporter, ExporterSettings, Importer};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_remote::{Error, RemoteSettings, Server};

use crate::child::{limit_fds, obey, say};
use crate::rng::Rng;

/// Words of an entry of the table: the number of its version, the block's word and size, the bytes
/// of its handle, and the handle.
const ENTRY: usize = 128;
const HANDLE: usize = 4;

/// Current handles, in memory that importers map. A version that is odd, or another one afterwards,
/// means that the entry was changed meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Table(&'static [AtomicU64]);

/// An entry of the table.
pub(crate) struct Published {
    pub word: u64,
    pub size: usize,
    pub handle: Vec<u8>,
}

impl Table {
    /// Maps a table of the file's size.
    pub(crate) fn map(file: &File) -> Self {
        let size = file.metadata().unwrap().len() as usize;
        let mode = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which stays. All processes access it by atomic operations.
        unsafe {
            let base = libc::mmap(std::ptr::null_mut(), size, mode, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(base, libc::MAP_FAILED);
            Self(std::slice::from_raw_parts(base.cast(), size / 8))
        }
    }

    pub(crate) const fn blocks(self) -> usize {
        self.0.len() / ENTRY
    }

    fn entry(self, number: usize) -> &'static [AtomicU64] {
        &self.0[number * ENTRY..][..ENTRY]
    }

    fn publish(self, number: usize, word: u64, size: usize, handle: &[u8]) {
        let entry = self.entry(number);
        entry[0].fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        for (at, value) in [(1, word), (2, size as u64), (3, handle.len() as u64)] {
            entry[at].store(value, Ordering::Relaxed);
        }
        for (to, part) in entry[HANDLE..].iter().zip(handle.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            to.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        entry[0].fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the entry of a block, once it is published.
    pub(crate) fn get(self, number: usize) -> Published {
        let entry = self.entry(number);
        loop {
            let version = entry[0].load(Ordering::Acquire);
            let values: Vec<u64> = entry.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            fence(Ordering::Acquire);
            if version == 0 || version % 2 == 1 || entry[0].load(Ordering::Relaxed) != version {
                std::thread::yield_now();
                continue;
            }
            let mut handle: Vec<u8> = values[HANDLE..].iter().flat_map(|word| word.to_le_bytes()).collect();
            handle.truncate(values[3] as usize);
            return Published { word: values[1], size: values[2] as usize, handle };
        }
    }
}

/// What the producer's threads share.
#[derive(Clone)]
struct Memory {
    pool: Arc<dyn Pool>,
    exporter: &'static Exporter,
    server: Arc<Server>,
}

impl Memory {
    /// Allocates a block, with a word in every 8 bytes.
    fn allocate(&self, size: usize, word: u64) -> (Address, Vec<u8>) {
        let address = self.pool.allocate(Layout::new(size, 64).unwrap()).unwrap();
        // SAFETY: a new block of that size.
        let words =
            unsafe { std::slice::from_raw_parts_mut(address.as_ptr().unwrap().cast::<u64>(), size / 8) };
        words.fill(word.to_le());
        // SAFETY: the block is live.
        let handle = unsafe { self.exporter.handle_with_len(address, size) }.unwrap();
        (address, self.server.remote_handle(&handle).unwrap().to_bytes())
    }

    fn free(&self, address: Address) {
        // SAFETY: a block of this pool, which this process does not use any more.
        unsafe { self.pool.free(address) }.unwrap();
    }
}

/// Frees and allocates blocks as fast as it can.
struct Churn {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
    file: File,
}

const SIZES: [usize; 8] = [64, 4096, 16_256, 16_264, 64 << 10, 256 << 10, 1 << 20, 1_500_000];

fn churn(memory: Memory, blocks: usize) -> Churn {
    // SAFETY: a new fd.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"table".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len((blocks * ENTRY * 8) as u64).unwrap();
    let table = Table::map(&file);
    let stops = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stops);
    let thread = std::thread::spawn(move || {
        let mut rng = Rng::new(7);
        let mut addresses = vec![None; blocks];
        let mut rounds = 0_u64;
        while !stopped.load(Ordering::Relaxed) {
            // All of them first.
            let number =
                if rounds < blocks as u64 { rounds as usize } else { rng.below(blocks as u64) as usize };
            rounds += 1;
            if let Some(address) = addresses[number].take() {
                memory.free(address);
            }
            let (size, word) = (*rng.choose(&SIZES), (number as u64) << 40 | rounds);
            let (address, handle) = memory.allocate(size, word);
            addresses[number] = Some(address);
            table.publish(number, word, size, &handle);
        }
        addresses.into_iter().flatten().for_each(|address| memory.free(address));
        rounds
    });
    Churn { stops, thread, file }
}

/// Forks. In the child there is no server; the parent's goes on.
fn fork(memory: &Memory) -> String {
    let handle = memory.allocate(64, 1).1;
    // SAFETY: the child uses this thread only, and ends by `_exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let own = umf_ipc::Handle::from_bytes(&handle[..umf_ipc::HANDLE_SIZE]).unwrap();
            let is_forked = matches!(memory.server.remote_handle(&own), Err(Error::Forked));
            drop(std::ptr::from_ref(&*memory.server).read());
            libc::_exit(if is_forked { 3 } else { 4 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        format!("forked {}", libc::WEXITSTATUS(status))
    }
}

pub(crate) fn run(settings: &RemoteSettings) {
    let host = umf_provider_host::HostProvider::builder().visibility(Visibility::Shared);
    let pool = SlabPool::new(host.build().unwrap(), SlabSettings::new()).unwrap();
    let exporter: &Exporter = Box::leak(Box::new(Exporter::new(ExporterSettings::default()).unwrap()));
    let import = Arc::new(umf_provider_host::HostImport::new());
    let importer: &Importer = Box::leak(Box::new(Importer::builder().import(import).build().unwrap()));
    if let Some(more) = crate::machine::number("TESTS_REMOTE_FDS") {
        // The library is opened before.
        let _ = umf_remote::providers(settings);
        limit_fds(Some(more));
    }
    let server = match Server::start(exporter, importer, settings) {
        Ok(server) => Arc::new(server),
        Err(error @ (Error::NoLibrary(_) | Error::NoProvider { .. })) => {
            return say(&format!("skip {error}"));
        }
        Err(error) => return say(&format!("error {} {error}", crate::child::kind(&error))),
    };
    let mut memory = Some(Memory { pool, exporter, server });
    let mut blocks = Vec::new();
    let mut churning: Option<Churn> = None;
    let mut number = 0;
    say(&memory.as_ref().unwrap().server.address());
    obey(|words| {
        if *words == ["end"] {
            memory = None;
            return Some("ended".to_owned());
        }
        let memory = memory.as_ref().unwrap();
        Some(match words {
            ["allocate", size] => {
                number += 1;
                let (size, word) = (size.parse().unwrap(), number << 40 | 0x55);
                let (address, handle) = memory.allocate(size, word);
                blocks.push(Some((address, size)));
                format!("{} {word} {}", blocks.len() - 1, data_encoding::HEXLOWER.encode(&handle))
            }
            ["free", block] => {
                let (address, _) = blocks[block.parse::<usize>().unwrap()].take().unwrap();
                memory.free(address);
                "freed".to_owned()
            }
            ["contents", block, word] => {
                let (address, size) = blocks[block.parse::<usize>().unwrap()].unwrap();
                // SAFETY: a live block. No importer writes it at the moment.
                let bytes = unsafe { std::slice::from_raw_parts(address.as_ptr().unwrap(), size) };
                format!("{:?}", crate::first_wrong(bytes, 0, word.parse().unwrap()))
            }
            ["churn", count] => {
                let begun = churn(memory.clone(), count.parse().unwrap());
                let path = format!("/proc/{}/fd/{}", std::process::id(), begun.file.as_raw_fd());
                churning = Some(begun);
                path
            }
            ["calm"] => {
                let Churn { stops, thread, .. } = churning.take().unwrap();
                stops.store(true, Ordering::Relaxed);
                format!("{}", thread.join().unwrap())
            }
            ["statistics"] => {
                let now = memory.server.statistics();
                let deferred = memory.pool.controls().unwrap().drain(Duration::ZERO).blocks;
                format!(
                    "importers={} registered={} grants={} deferred={deferred}",
                    now.importers, now.registered, now.grants
                )
            }
            ["fds", more] => {
                limit_fds(Some(more.parse().unwrap()));
                "limited".to_owned()
            }
            ["unlimit"] => {
                limit_fds(None);
                "unlimited".to_owned()
            }
            ["fork"] => fork(memory),
            words => panic!("no command {words:?}"),
        })
    });
}
