//! Lists with gaps, fetched from a registered range of the other process: by umf, and with an entry for each by the kernel.

use std::time::Instant;

use umf::Pool;
use umf::link::{KEY_SIZE, Link, RemoteAccess, RemoteKey, Span, TagMatch};

use super::super::Bench;
use super::super::measure::told;
use super::peer::Order;
use super::raw;
use super::rows::{Pair, answer, connect, push_rate, rounds, say};
use crate::failure::Failure;
use crate::sys::remote;

/// Bytes of an entry, and from one to the next.
const ENTRY: usize = 2048;
const STRIDE: usize = 3072;

const COUNTS: [(&str, usize); 2] = [("16", 16), ("512", 512)];

fn spans(count: usize) -> Vec<Span> {
    (0..count).map(|number| Span { offset: STRIDE * number, length: ENTRY }).collect()
}

/// Adds the rows `link.strided.*`.
pub(super) fn measure(bench: &mut Bench, pair: &mut Pair) -> Result<(), Failure> {
    for (name, count) in COUNTS {
        for engine in ["mapped", "cma", "raw"] {
            let row = format!("link.strided.{name}.{engine}");
            if !bench.rows.are_wanted(&row) {
                continue;
            }
            pair.link = connect(&mut pair.worker, Some(if engine == "mapped" { engine } else { "cma" }))?;
            if engine != "mapped" && pair.link.engines().cma().is_err() {
                crate::output::tell(&format!("no row {row}: the kernel refuses to read"));
                continue;
            }
            let value = rounds(bench, pair, &row, |pair, times| pair.gets(count, times, engine == "raw"))?;
            push_rate(bench, &row, value, ENTRY * count)?;
        }
    }
    Ok(())
}

/// The other process: has a range, until it is told that nobody needs it any more.
pub(super) fn expose(pool: &Pool, link: &mut Link, size: usize) -> Result<f64, Failure> {
    let block = pool.allocate(size).map_err(told)?;
    raw::fill(&block.memory().map_err(told)?, 7);
    let memory = block.linked().map_err(told)?;
    let exposed = link.exposing(&memory, RemoteAccess::Get, |link, key| {
        link.send(0, &key.to_bytes())?;
        link.send(0, &block.address().value().to_le_bytes())?;
        link.recv(TagMatch::ANY, &mut [0; 8])
    });
    exposed.map_err(told)?.map_err(told)?;
    Ok(0.0)
}

impl Pair {
    /// Nanoseconds to fetch so many entries.
    fn gets(&mut self, count: usize, times: u64, is_raw: bool) -> Result<f64, Failure> {
        let Self { worker, link, .. } = self;
        let pid = link.peer_pid();
        say(worker, &Order::Expose { size: STRIDE * count })?;
        let (mut key, mut address) = ([0; KEY_SIZE], [0; 8]);
        link.recv(TagMatch::ANY, &mut key).map_err(told)?;
        link.recv(TagMatch::ANY, &mut address).map_err(told)?;
        let key = RemoteKey::from_bytes(&key).map_err(told)?;
        let address = u64::from_le_bytes(address);
        let spans = spans(count);
        let list: Vec<(u64, usize)> =
            spans.iter().map(|span| (address + span.offset as u64, span.length)).collect();
        let mut into = vec![0; ENTRY * count];
        let mut fetch = |link: &mut Link| -> Result<(), Failure> {
            if is_raw {
                let came = remote::read_list(pid.cast_signed(), &list, &mut into).map_err(told)?;
                if came != ENTRY * count {
                    return Err(told(format!("process_vm_readv read {came} bytes")));
                }
            } else {
                link.get(&key, &spans, &mut into).map_err(told)?;
            }
            std::hint::black_box(&mut into);
            Ok(())
        };
        fetch(link)?;
        let start = Instant::now();
        for _ in 0..times {
            fetch(link)?;
        }
        let all = start.elapsed().as_nanos() as f64;
        link.send(0, &[0; 8]).map_err(told)?;
        answer(worker)?;
        Ok(all / times as f64)
    }
}
