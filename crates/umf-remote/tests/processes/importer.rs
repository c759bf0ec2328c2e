//! The role of an importer: opens handles, and reads and writes when it is told to.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use umf_ipc::Importer;
use umf_remote::{Data, Error, Grant, Remote, RemoteImporter, RemoteSettings, Result};

use crate::child::{kind, limit_fds, obey, say};
use crate::first_wrong;
use crate::producer::Table;
use crate::rng::Rng;

/// Bytes of a handle from a command.
fn decoded(text: &str) -> Vec<u8> {
    data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap()
}

fn outcome(result: Result<Data>, offset: usize, word: u64) -> String {
    match result {
        Ok(data) => match first_wrong(&data, offset, word) {
            None => "good".to_owned(),
            Some(at) => format!("wrong at {at}"),
        },
        Err(error) => format!("error {}", failure(&error)),
    }
}

/// Returns the variant and the text of an error.
fn failure(error: &Error) -> String {
    format!("{} {error}", kind(error))
}

/// Reads until it is stopped or a read fails, and says when it begins and why it ends.
fn read_on(remote: &Remote, (offset, length): (usize, usize), word: u64, stops: &AtomicBool) {
    let mut reads = 0_u64;
    while !stops.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let outcome = outcome(remote.read(offset, length), offset, word);
        if outcome != "good" {
            println!("\na read of {length} failed after {} ms: {outcome}", begun.elapsed().as_millis());
            return say(&format!("ended {outcome}"));
        }
        if reads == 0 {
            say("reading");
        }
        reads += 1;
    }
    say(&format!("ended stopped {reads}"));
}

/// Counts of a campaign of random reads.
#[derive(Debug, Default)]
struct Counts {
    good: u64,
    stale: u64,
    /// Other errors, and one of them.
    failed: u64,
    failure: Option<String>,
    wrong: Option<String>,
}

impl Counts {
    fn add(&mut self, result: Result<Data>, (offset, length): (usize, usize), word: u64) {
        match result {
            Ok(data) => match first_wrong(&data, offset, word) {
                None if data.len() == length => self.good += 1,
                at => {
                    let found = at.map(|at| data[at / 8 * 8..][..8.min(data.len() - at / 8 * 8)].to_vec());
                    self.wrong =
                        Some(format!("word {word:#x}, {length} at {offset}: byte {at:?}: {found:02x?}"));
                }
            },
            Err(Error::Stale { .. }) => self.stale += 1,
            Err(error) => {
                self.failed += 1;
                self.failure.get_or_insert(failure(&error));
            }
        }
    }
}

/// Reads random ranges of the blocks in a table: one after another, several at once, and polled.
fn campaign(importer: &RemoteImporter, table: Table, reads: u64, seed: u64) -> Counts {
    let mut rng = Rng::new(seed);
    let mut counts = Counts::default();
    let mut done = 0;
    while done < reads && counts.wrong.is_none() {
        let entry = table.get(rng.below(table.blocks() as u64) as usize);
        let remote = importer.open_bytes(&entry.handle).unwrap();
        let mut range = || {
            let length = match rng.below(4) {
                // Whole, to have it last.
                0 => return (0, entry.size),
                1 => rng.below(300),
                2 => rng.below(17_000),
                _ => rng.below(entry.size as u64),
            };
            let length = (length as usize).min(entry.size);
            (rng.below((entry.size - length) as u64 + 1) as usize, length)
        };
        let ranges: Vec<_> = (0..4).map(|_| range()).collect();
        match rng.below(3) {
            0 => {
                for range in ranges {
                    counts.add(remote.read(range.0, range.1), range, entry.word);
                    done += 1;
                }
            }
            // All at once.
            1 => {
                let mut pending = VecDeque::new();
                for range in ranges {
                    done += 1;
                    match remote.start_read(range.0, range.1) {
                        Ok(read) => pending.push_back((read, range)),
                        Err(error) => counts.add(Err(error), range, entry.word),
                    }
                }
                for (read, range) in pending {
                    counts.add(read.wait(), range, entry.word);
                }
            }
            // Polled; the last one is given up.
            _ => {
                let given_up = remote.start_read(ranges[3].0, ranges[3].1);
                let range = ranges[0];
                done += 1;
                let result = remote.start_read(range.0, range.1).and_then(|mut read| {
                    loop {
                        if let Some(data) = read.poll()? {
                            return Ok(data);
                        }
                        std::thread::yield_now();
                    }
                });
                counts.add(result, range, entry.word);
                drop(given_up);
            }
        }
    }
    counts
}

/// An open block. Grants and threads borrow it, so that it is freed by hand.
#[derive(Clone, Copy)]
struct Opened(*mut Remote);

impl Opened {
    fn get(self) -> &'static Remote {
        // SAFETY: `close` is called when nothing uses it.
        unsafe { &*self.0 }
    }

    /// # Safety
    /// Nothing uses the block.
    unsafe fn close(self) {
        // SAFETY: made by `into_raw`, and closed once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Forks. The child may not use what its parent opened, and opens it again. Returns what it saw.
fn fork(importer: &RemoteImporter, opened: Opened, handle: &[u8], word: u64) -> String {
    // SAFETY: the child uses this thread only, and ends by `_exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let is_forked = matches!(opened.get().read(0, 100), Err(Error::Forked));
            let is_forked_long = matches!(opened.get().read(0, 60_000), Err(Error::Forked));
            opened.close();
            let again = importer.open_bytes(handle).unwrap();
            let is_good = [100, 60_000].map(|length| outcome(again.read(0, length), 0, word) == "good");
            drop(again);
            importer.evict_idle();
            libc::_exit(
                i32::from(is_forked) | i32::from(is_forked_long) << 1 | i32::from(is_good == [true; 2]) << 2,
            );
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        if libc::WIFEXITED(status) {
            format!("forked {}", libc::WEXITSTATUS(status))
        } else {
            format!("{status:#x}")
        }
    }
}

pub(crate) fn run(settings: &RemoteSettings) {
    let import = Arc::new(umf_provider_host::HostImport::new());
    let local: &Importer = Box::leak(Box::new(Importer::builder().import(import).build().unwrap()));
    if let Err(error @ Error::NoLibrary(_)) = umf_remote::providers(settings) {
        return say(&format!("skip {error}"));
    }
    let mut importer = RemoteImporter::new(local, settings.clone());
    let mut blocks: Vec<(Opened, Vec<u8>, u64)> = Vec::new();
    let mut grant: Option<(usize, Grant<'static>)> = None;
    let stops = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    say("ready");
    obey(|words| {
        let block = |number: &str| number.parse::<usize>().unwrap();
        let number = |text: &str| text.parse::<usize>().unwrap();
        Some(match words {
            // The reply of a producer to `allocate`.
            ["open", _, word, handle] => {
                let handle = decoded(handle);
                match importer.open_bytes(&handle) {
                    Ok(remote) => {
                        blocks.push((Opened(Box::into_raw(Box::new(remote))), handle, word.parse().unwrap()));
                        format!("{}", blocks.len() - 1)
                    }
                    Err(error) => format!("error {}", failure(&error)),
                }
            }
            ["read", number_of_block, offset, length] => {
                let (remote, _, word) = &blocks[block(number_of_block)];
                let offset = number(offset);
                outcome(remote.get().read(offset, number(length)), offset, *word)
            }
            ["loop", number_of_block, offset, length] => {
                let (remote, _, word) = blocks[block(number_of_block)].clone();
                let (range, stops) = ((number(offset), number(length)), Arc::clone(&stops));
                stops.store(false, Ordering::Relaxed);
                let remote = remote.get();
                threads.push(std::thread::spawn(move || read_on(remote, range, word, &stops)));
                return None;
            }
            ["stop"] => {
                stops.store(true, Ordering::Relaxed);
                return None;
            }
            ["bulk", number_of_block, length, count] => {
                let (remote, _, word) = &blocks[block(number_of_block)];
                let all = (0..number(count)).map(|_| outcome(remote.get().read(0, number(length)), 0, *word));
                all.into_iter().find(|outcome| outcome != "good").unwrap_or_else(|| "good".to_owned())
            }
            ["grant", number_of_block, milliseconds] => {
                let of = block(number_of_block);
                match blocks[of].0.get().grant(Duration::from_millis(number(milliseconds) as u64)) {
                    Ok(given) => {
                        grant = Some((of, given));
                        "granted".to_owned()
                    }
                    Err(error) => format!("error {}", failure(&error)),
                }
            }
            ["write", word] => {
                let (of, grant) = grant.as_ref().unwrap();
                let word: u64 = word.parse().unwrap();
                let data: Vec<u8> = std::iter::repeat_n(word.to_le_bytes(), blocks[*of].0.get().len() / 8)
                    .flatten()
                    .collect();
                match grant.write(0, &data) {
                    Ok(()) => {
                        blocks[*of].2 = word;
                        "written".to_owned()
                    }
                    Err(error) => format!("error {}", failure(&error)),
                }
            }
            ["ungrant"] => match grant.take().unwrap().1.end() {
                Ok(()) => "ended".to_owned(),
                Err(error) => format!("error {}", failure(&error)),
            },
            ["close"] => {
                stops.store(true, Ordering::Relaxed);
                for thread in threads.drain(..) {
                    thread.join().unwrap();
                }
                grant = None;
                for (opened, ..) in blocks.drain(..) {
                    // SAFETY: grants and threads have ended.
                    unsafe { opened.close() };
                }
                importer = RemoteImporter::new(local, settings.clone());
                "closed".to_owned()
            }
            ["campaign", path, reads, seed] => {
                let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                let counts =
                    campaign(&importer, Table::map(&file), number(reads) as u64, number(seed) as u64);
                format!("{counts:?}")
            }
            ["fork", number_of_block] => {
                let (remote, handle, word) = &blocks[block(number_of_block)];
                fork(&importer, *remote, handle, *word)
            }
            ["fds", more] => {
                limit_fds(Some(number(more) as u64));
                "limited".to_owned()
            }
            ["unlimit"] => {
                limit_fds(None);
                "unlimited".to_owned()
            }
            words => panic!("no command {words:?}"),
        })
    });
}
