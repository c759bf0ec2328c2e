//! `umf bench ipc`.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use umf::host::HostImport;
use umf::{Access, Address, Block, Exporter, Handle, Importer, Pool};

use super::Bench;
use super::c_umf::{Memory, Refused, Settings};
use super::measure::{self, Measured, told};
use super::producer::Producer;
use crate::failure::Failure;
use crate::{sys, timing};

/// Bytes of a block, and of an isolated region.
const SIZE: usize = 64 << 10;
/// Handles that are used in turn: few, so that what is timed is the hit.
const SET: usize = 8;
/// How often a set is gone through in a batch of hits.
const PASSES: usize = 128;
/// Regions that are opened in turn with a cache of one entry.
const REGIONS: usize = 64;

type Bytes = [u8; umf::ipc::HANDLE_SIZE];

/// A row of hits: the handles that each thread opens, ours and the peer's.
struct Case<'h> {
    name: &'static str,
    ours: Vec<&'h [Bytes]>,
    peer: Vec<&'h [Vec<u8>]>,
}

/// Adds the rows `ipc.*`.
pub(super) fn measure(bench: &mut Bench) -> Result<(), Failure> {
    exporting(bench)?;
    encoding(bench)?;
    let mut producer = Producer::start()?;
    cached_opens(bench, &mut producer)?;
    cold_opens(bench, &mut producer)?;
    super::leases::measure(bench, &mut producer)?;
    super::access::measure(bench, &mut producer)
}

fn exporting(bench: &mut Bench) -> Result<(), Failure> {
    let time = bench.time;
    let pool = Pool::shared().map_err(told)?;
    let exporter = Exporter::new(umf::ipc::ExporterSettings::default()).map_err(told)?;
    let allocate = |count: usize| -> Result<Vec<Block<'_>>, Failure> {
        (0..count).map(|_| pool.allocate(SIZE).map_err(told)).collect()
    };
    let blocks = allocate(SET)?;
    let addresses: Vec<Address> = blocks.iter().map(Block::address).collect();

    let name = "ipc.get_put_cached";
    bench.rows.begin(name);
    let ours = measure::one(time, || {
        for _ in 0..PASSES {
            for address in &addresses {
                // SAFETY: blocks that nothing holds a reference into.
                drop(black_box(unsafe { exporter.get(black_box(*address)) }?));
            }
        }
        Ok::<u64, umf::ipc::Error>((PASSES * SET) as u64)
    })?;
    let peer = match &bench.peer {
        Some(library) => {
            let pointers: Vec<_> =
                (0..SET).map(|_| library.allocate(SIZE)).collect::<Result<_, _>>().map_err(told)?;
            let measured = measure::one(time, || {
                for _ in 0..PASSES {
                    pointers.iter().try_for_each(|pointer| library.get_and_put(*pointer))?;
                }
                Ok::<u64, Refused>((PASSES * SET) as u64)
            })?;
            Some((super::c_umf::NAME, measured))
        }
        None => None,
    };
    bench.rows.add(name, ours, peer)?;

    let name = "ipc.export_cold";
    bench.rows.begin(name);
    // Blocks of regions that are exported already; freeing them again is not timed.
    let cold = measure::singly(time, || {
        let blocks = allocate(SET)?;
        let (time, result) = timing::nanoseconds(|| {
            // SAFETY: as above.
            blocks.iter().try_for_each(|block| unsafe { exporter.get(block.address()) }.map(drop))
        });
        result.map_err(told)?;
        Ok::<f64, Failure>(time / SET as f64)
    })?;
    bench.rows.add(name, cold, None)
}

fn encoding(bench: &mut Bench) -> Result<(), Failure> {
    let pool = Pool::shared().map_err(told)?;
    let block = pool.allocate(SIZE).map_err(told)?;
    let handle = block.handle().map_err(told)?;
    let (bytes, text) = (handle.to_bytes(), handle.to_string());
    let row = |bench: &mut Bench, name: &str, mut run: Box<dyn FnMut() -> bool + '_>| {
        bench.rows.begin(name);
        let measured = measure::one(bench.time, || {
            if (0..PASSES).all(|_| run()) { Ok(PASSES as u64) } else { Err("a handle does not decode") }
        })?;
        bench.rows.add(name, measured, None)
    };
    row(bench, "ipc.encode_text", Box::new(|| !black_box(&handle).to_string().is_empty()))?;
    row(bench, "ipc.decode_text", Box::new(|| black_box(&text).parse::<Handle>().is_ok()))?;
    row(bench, "ipc.decode", Box::new(|| Handle::from_bytes(black_box(&bytes)).is_ok()))
}

fn importer(limit: u64) -> Result<Importer, Failure> {
    Importer::builder().import(Arc::new(HostImport::new())).max_opened_handles(limit).build().map_err(told)
}

fn cached_opens(bench: &mut Bench, producer: &mut Producer) -> Result<(), Failure> {
    let bytes = |handles: Vec<Handle>| handles.iter().map(Handle::to_bytes).collect::<Vec<Bytes>>();
    let isolated = bytes(producer.isolated(2 * SET, SIZE)?);
    let (one, other) = isolated.split_at(SET);
    let same = bytes(producer.pooled(SET, SIZE / 64)?);
    let foreign = match (&bench.peer, &bench.peer_path) {
        (Some(_), Some(path)) => {
            producer.foreign(path.clone(), Settings::pooling(Memory::Shared), 2 * SET, SIZE)?
        }
        _ => Vec::new(),
    };
    let (foreign_one, foreign_other) = foreign.split_at(foreign.len() / 2);
    let cases = [
        Case { name: "ipc.open_close_cached.1t", ours: vec![one], peer: vec![foreign_one] },
        Case {
            name: "ipc.open_close_cached.2t",
            ours: vec![one, other],
            peer: vec![foreign_one, foreign_other],
        },
        Case {
            name: "ipc.open_close_cached.same_region.2t",
            ours: vec![&same, &same],
            peer: vec![foreign_one, foreign_one],
        },
    ];
    for Case { name, ours: sets, peer: foreign } in cases {
        bench.rows.begin(name);
        let importer = importer(0)?;
        let ours =
            measure::threads(sets.len(), |number| open_and_close(bench.time, &importer, sets[number]))?;
        let peer = match &bench.peer {
            Some(library) => {
                let measured = measure::threads(foreign.len(), |number| {
                    timing::batches(bench.time, || {
                        for _ in 0..PASSES {
                            foreign[number].iter().try_for_each(|handle| library.open_and_close(handle))?;
                        }
                        Ok::<u64, Refused>((PASSES * SET) as u64)
                    })
                })?;
                Some((super::c_umf::NAME, measured))
            }
            None => None,
        };
        bench.rows.add(name, ours, peer)?;
    }
    Ok(())
}

/// Hits, from the bytes of the handles.
fn open_and_close(
    time: Duration,
    importer: &Importer,
    handles: &[Bytes],
) -> Result<Vec<f64>, umf::ipc::Error> {
    timing::batches(time, || {
        for _ in 0..PASSES {
            for bytes in handles {
                drop(black_box(importer.open_bytes(black_box(bytes), Access::ReadWrite)?));
            }
        }
        Ok((PASSES * handles.len()) as u64)
    })
}

fn cold_opens(bench: &mut Bench, producer: &mut Producer) -> Result<(), Failure> {
    let handles = producer.isolated(REGIONS, SIZE)?;
    bench.rows.begin("ipc.open_cold");
    let bare = bare_opens(bench.time, producer.pid(), &handles)?;
    let importer = importer(1)?;
    let ours = measure::one(bench.time, || {
        for handle in &handles {
            drop(black_box(importer.open(handle)?));
        }
        Ok::<u64, umf::ipc::Error>(handles.len() as u64)
    })?;
    bench.rows.add("ipc.open_cold", ours, Some(("bare system calls", bare)))?;
    bench.rows.add("ipc.open_cold.bare", bare, None)?;

    bench.rows.begin("ipc.first_contact");
    let first = handles.first().ok_or_else(|| told("the producer exported nothing"))?;
    let contact = measure::singly(bench.time, || {
        let importer = self::importer(0)?;
        let (time, mapping) = timing::nanoseconds(|| importer.open(first).map(drop));
        mapping.map_err(told)?;
        Ok::<f64, Failure>(time)
    })?;
    bench.rows.add("ipc.first_contact", contact, None)
}

/// `pidfd_getfd`, `mmap`, `munmap` and `close` alone, with the pidfd held.
fn bare_opens(time: Duration, pid: u32, handles: &[Handle]) -> Result<Measured, Failure> {
    let pidfd = sys::pidfd(pid.cast_signed()).map_err(told)?;
    measure::one(time, || {
        for handle in handles {
            let number = handle.data_fd().ok_or(rustix::io::Errno::BADF)?;
            sys::bare_open::open_and_close(pidfd.as_fd(), number, SIZE)?;
        }
        Ok::<u64, rustix::io::Errno>(handles.len() as u64)
    })
}
