//! The rows of `umf bench pool`.

use std::process::{Command, Stdio};

use super::c_pool;
use super::churn::Churn;
use super::orders::{BATCHES, Order, Plan};
use super::ours::{Slab, WithoutPool};
use super::script::{LARGE, MIXED, SMALL, Sizes};
use super::subject::{Named, Subject};
use super::subjects::{Peers, UMF, with};
use crate::bench::Bench;
use crate::bench::c_umf::{self, CUmf};
use crate::bench::measure::{Measured, told};
use crate::bench::turns::in_turns;
use crate::failure::Failure;
use crate::{output, timing};

/// The shortest batch: what is allocated and then freed in reverse is that many.
const LEAST: usize = 64;

const ORDERS: [(&str, Order); 5] = [
    ("pair", Order::Pair),
    ("lifo", Order::Lifo),
    ("fifo", Order::Fifo),
    ("random", Order::Random),
    ("xfree", Order::CrossFree),
];

const FIND: &str = "pool.find_pool";
const FIND_MORE: &str = "pool.find_pool.more";
const SCALING: &str = "pool.threads.8";
const CHURN: &str = "pool.churn.reserved_over_live";
const METADATA: &str = "pool.metadata";

/// Allocations of each thread where it is measured how much many get done: longer than a turn on a processor.
const SCALED: usize = 1 << 20;
/// Live bytes while it churns, by the sizes.
const CHURNED: [(Sizes, usize); 2] = [(SMALL, 64 << 20), (LARGE, 1 << 30)];
const OPERATIONS: usize = 10_000_000;
/// Bytes of blocks whose metadata is weighed.
const WEIGHED: usize = 256 << 20;
/// As much less is done by `--quick`, and with as many fewer blocks.
const QUICK: usize = 256;
const FEWER: usize = 10;

/// Adds the rows `pool.*`, one for each peer.
pub(in crate::bench) fn measure(bench: &mut Bench) -> Result<(), Failure> {
    let peers = Peers::new();
    let c = bench.peer.take();
    let subjects = peers.subjects(c.as_ref());
    find_pool(bench, c.as_ref())?;
    for (name, plan) in plans(bench.quick) {
        compare(bench, &subjects, &name, &plan)?;
    }
    scaling(bench, &subjects, SCALING, SMALL)?;
    scaling(bench, &subjects, &format!("{SCALING}.large"), LARGE)?;
    for (sizes, _) in CHURNED {
        apart(bench, &subjects, &format!("{CHURN}.{}", sizes.name), "x")?;
    }
    apart(bench, &subjects, METADATA, "%")
}

/// What is to be done in one row.
pub(in crate::bench) fn plan(quick: bool, order: Order, sizes: Sizes, threads: usize, touched: bool) -> Plan {
    let (shorter, fewer) = if quick { (QUICK, FEWER) } else { (1, 1) };
    let sizes = sizes.with_fewer(fewer);
    // To write to all pages of large blocks takes as much longer, and as few of them fit between two threads.
    let slower = match order {
        _ if sizes.name != LARGE.name => 1,
        _ if touched => 16,
        Order::CrossFree => 4,
        _ => 1,
    };
    Plan { order, sizes, threads, touched, batch: (sizes.batch / slower / shorter).max(LEAST) }
}

/// The rows that are nanoseconds per allocation and free.
fn plans(quick: bool) -> Vec<(String, Plan)> {
    let plan = |order, sizes, threads, touched| plan(quick, order, sizes, threads, touched);
    let mut plans = Vec::new();
    for sizes in [SMALL, LARGE] {
        for (name, order) in ORDERS {
            for threads in [1, 2, 4] {
                plans.push((
                    format!("pool.{}.{name}.{threads}t", sizes.name),
                    plan(order, sizes, threads, false),
                ));
            }
        }
        let eight = plan(Order::Random, sizes, 8, false);
        plans.push((format!("pool.{}.random.8t", sizes.name), eight));
    }
    for sizes in [SMALL, LARGE, MIXED] {
        for threads in [1, 2, 4, 8] {
            let name = format!("pool.{}.larson.{threads}t", sizes.name);
            plans.push((name, plan(Order::Larson, sizes, threads, false)));
        }
    }
    for threads in [1, 2, 4, 8] {
        plans.push((format!("pool.mixed.random.{threads}t"), plan(Order::Random, MIXED, threads, false)));
    }
    for sizes in [SMALL, LARGE] {
        for (name, order) in ORDERS {
            for threads in [1, 2] {
                let name = format!("pool.touched.{}.{name}.{threads}t", sizes.name);
                plans.push((name, plan(order, sizes, threads, true)));
            }
        }
    }
    plans
}

/// Adds a row for each peer that takes part.
fn compare(
    bench: &mut Bench,
    peers: &[Box<dyn Subject + '_>],
    name: &str,
    plan: &Plan,
) -> Result<(), Failure> {
    if !bench.rows.are_wanted(name) {
        return Ok(());
    }
    bench.rows.begin(name);
    // A new one for each row, so that no row depends on those before.
    let slab = Slab::new()?;
    let ours = Named::new(UMF, &slab);
    let mut subjects: Vec<&dyn Subject> = vec![&ours];
    subjects.extend(peers.iter().map(|peer| &**peer).filter(|peer| peer.takes_part(plan)));
    let values = in_turns(bench.quick, &subjects, |subject| subject.run(plan))?;
    add_all(bench, name, "ns", &subjects, values)
}

fn add_all(
    bench: &mut Bench,
    name: &str,
    unit: &'static str,
    subjects: &[&dyn Subject],
    values: Vec<Vec<f64>>,
) -> Result<(), Failure> {
    let mut values = values.into_iter().map(Measured::of);
    let ours = values.next().ok_or_else(|| Failure::Told("nothing was measured".to_owned()))??;
    for (peer, value) in subjects.iter().skip(1).zip(values) {
        bench.rows.push(name, unit, ours, Some((peer.name(), value?)))?;
    }
    Ok(())
}

/// What it costs to free a block without saying from which pool it is.
fn find_pool(bench: &mut Bench, c: Option<&CUmf>) -> Result<(), Failure> {
    if !bench.rows.are_wanted(FIND) && !bench.rows.are_wanted(FIND_MORE) {
        return Ok(());
    }
    bench.rows.begin(FIND);
    let (slab, without) = (Slab::new()?, WithoutPool(Slab::new()?));
    let c_without = c.map(c_pool::WithoutPool);
    let ours = Named::new(UMF, &without);
    let ours_with = Named::new("umf, with the pool", &slab);
    let theirs = c_without.as_ref().map(|allocator| Named::new(c_umf::NAME, allocator));
    let theirs_with = c.map(|c| Named::new("umf (C), with the pool", c));
    let mut subjects: Vec<&dyn Subject> = vec![&ours, &ours_with];
    if let (Some(theirs), Some(with)) = (&theirs, &theirs_with) {
        subjects.extend([theirs as &dyn Subject, with]);
    }
    let batch = SMALL.batch / if bench.quick { QUICK } else { 1 };
    let plan = Plan { order: Order::Random, sizes: SMALL, threads: 1, touched: false, batch };
    let values = in_turns(bench.quick, &subjects, |subject| subject.run(&plan))?;
    // Round by round, since the machine is not as fast in one as in another.
    let more = |without: &[f64], with: &[f64]| {
        let rounds = without.chunks(BATCHES).zip(with.chunks(BATCHES));
        let median = |values: &[f64]| timing::median(values.to_vec()).unwrap_or(0.0);
        Measured::of(rounds.map(|(without, with)| median(without) - median(with)).collect())
    };
    let ours_more = more(&values[0], &values[1])?;
    let theirs_more = match values.get(2..4) {
        Some([without, with]) => Some((c_umf::NAME, more(without, with)?)),
        _ => None,
    };
    add_all(bench, FIND, "ns", &subjects, values)?;
    bench.rows.add(FIND_MORE, ours_more, theirs_more)
}

/// What eight threads get done, to what two do.
fn scaling(
    bench: &mut Bench,
    peers: &[Box<dyn Subject + '_>],
    name: &str,
    sizes: Sizes,
) -> Result<(), Failure> {
    if !bench.rows.are_wanted(name) {
        return Ok(());
    }
    bench.rows.begin(name);
    let slab = Slab::new()?;
    let ours = Named::new(UMF, &slab);
    let count = SCALED / (SMALL.batch / sizes.batch) / if bench.quick { QUICK } else { 1 };
    let plan = |threads| Plan { order: Order::Random, sizes, threads, touched: false, batch: LEAST };
    let mut subjects: Vec<&dyn Subject> = vec![&ours];
    subjects.extend(peers.iter().map(|peer| &**peer).filter(|peer| peer.takes_part(&plan(8))));
    let values = in_turns(bench.quick, &subjects, |subject| {
        Ok(vec![subject.throughput(&plan(8), count)? / subject.throughput(&plan(2), count)?])
    })?;
    add_all(bench, name, "x", &subjects, values)
}

/// Adds a row whose values are measured in processes of their own.
fn apart(
    bench: &mut Bench,
    peers: &[Box<dyn Subject + '_>],
    name: &str,
    unit: &'static str,
) -> Result<(), Failure> {
    if !bench.rows.are_wanted(name) {
        return Ok(());
    }
    bench.rows.begin(name);
    let measured = |value| Measured::of(vec![value]);
    let Some(ours) = process(bench, name, UMF)? else { return Ok(()) };
    let ours = measured(ours)?;
    let mut alone = true;
    for peer in peers.iter().map(|peer| peer.name()) {
        // Those whose metadata lies between the blocks cannot be weighed like this.
        if name == METADATA && peer != c_umf::NAME {
            continue;
        }
        if let Some(value) = process(bench, name, peer)? {
            bench.rows.push(name, unit, ours, Some((peer, measured(value)?)))?;
            alone = false;
        }
    }
    if alone { bench.rows.push(name, unit, ours, None) } else { Ok(()) }
}

/// What [`alone`] prints in a process of its own.
fn process(bench: &Bench, row: &str, allocator: &str) -> Result<Option<f64>, Failure> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "pool", "--alone", row, allocator]).stdin(Stdio::null());
    if let Some(path) = &bench.peer_path {
        command.arg("--peer-umf").arg(path);
    }
    if bench.quick {
        command.arg("--quick");
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(Failure::Told(format!(
            "measuring {row} of {allocator} in a process of its own: {}",
            output.status
        )));
    }
    match text.trim() {
        "" => Ok(None),
        value => value.parse().map(Some).map_err(told),
    }
}

/// Measures one row for one allocator, and prints the value, or nothing if the allocator does not say what is asked for.
pub(in crate::bench) fn alone(bench: &Bench, row: &str, allocator: &str) -> Result<(), Failure> {
    let (shorter, fewer) = if bench.quick { (QUICK, FEWER) } else { (1, 1) };
    let value = with(allocator, bench.peer.as_ref(), |subject| {
        if row == METADATA {
            return subject.metadata(WEIGHED / shorter);
        }
        let churned = CHURNED.iter().find(|(sizes, _)| row == format!("{CHURN}.{}", sizes.name));
        let (sizes, live) = *churned.ok_or_else(|| Failure::Told(format!("--alone: no row {row:?}")))?;
        subject.churn(&Churn { sizes, live: live / fewer, operations: OPERATIONS / shorter })
    })?;
    match value {
        Some(value) => Ok(output::print(&format!("{value}\n"))?),
        None => Ok(()),
    }
}
